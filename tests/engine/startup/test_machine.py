"""CPUs and memory, from fake trees of /proc and /sys."""

from pathlib import Path

from octavo_engine.startup.machine import GIB, Machine


def machine(root: Path, files: dict[str, str], cpus: int = 64) -> Machine:
    files = {"proc/meminfo": "MemTotal:       67108864 kB\nMemFree: 1 kB", **files}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Machine(root, affinity=lambda: cpus)


def test_without_cgroups_affinity_and_total_memory_count(tmp_path):
    found = machine(tmp_path, {}, cpus=6)
    assert found.usable_cpus() == 6
    assert found.memory_limit() == 64 * GIB


def test_v2_container_that_sees_its_cgroup_as_the_root(tmp_path):
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cpu.max": "250000 100000",
            "sys/fs/cgroup/memory.max": str(8 * GIB),
        },
    )
    assert found.usable_cpus() == 2.5
    assert found.memory_limit() == 8 * GIB


def test_v2_takes_the_tightest_limit_on_the_way_up(tmp_path):
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/engine",
            "sys/fs/cgroup/kubepods/cpu.max": "800000 100000",
            "sys/fs/cgroup/kubepods/pod1/cpu.max": "300000 100000",
            "sys/fs/cgroup/kubepods/pod1/engine/cpu.max": "max 100000",
            "sys/fs/cgroup/kubepods/pod1/memory.max": str(6 * GIB),
            "sys/fs/cgroup/kubepods/pod1/engine/memory.max": "max",
        },
    )
    assert found.usable_cpus() == 3
    assert found.memory_limit() == 6 * GIB


def test_v1_quota_and_limit(tmp_path):
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/",
            # the container sees its own cgroup as the mount; /docker/abc exists on the host alone
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(3 * GIB),
        },
    )
    assert found.usable_cpus() == 4
    assert found.memory_limit() == 3 * GIB


def test_v1_without_limits(tmp_path):
    found = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
        cpus=3,
    )
    assert found.usable_cpus() == 3
    assert found.memory_limit() == 64 * GIB


def test_affinity_below_the_quota_counts(tmp_path):
    found = machine(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"}, cpus=2)
    assert found.usable_cpus() == 2


def test_this_machine_can_be_read():
    found = Machine()
    assert found.usable_cpus() > 0
    assert found.memory_limit() > 2**20
