import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, subprocess, sys, time
from octavo_serving.local import processes
before = subprocess.Popen(["sleep", "60"])
spare = processes.descendants(os.getpid())
processes.adopt_orphans()
# A child that ignores SIGTERM, with an orphan of its own in another session.
child = subprocess.Popen([sys.executable, "-c", '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
orphan = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
subprocess.run([sys.executable, "-c", orphan])
print("ready", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
ended = processes.end_descendants(spare=spare, grace_s=0.2)
left = processes.descendants(os.getpid())
print(len(ended), left == {before.pid})
before.kill()
"""


def test_exactly_what_was_started_is_ended_orphans_and_stubborn_ones_too() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "True"]


def test_descendants_of_a_process_without_children_are_none() -> None:
    from octavo_serving.local import processes

    done = subprocess.Popen(["true"])
    done.wait()
    assert done.pid not in processes.descendants(os.getpid())
    assert Path("/proc/self").exists()
