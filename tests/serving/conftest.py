"""One Ray for all tests of a run."""

from collections.abc import Iterator

import pytest

from octavo_testing.processes import free_ports
from octavo_testing.serving.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from octavo_serving.local.local_ray import LocalRay, RunFolder

    folder = RunFolder.create()
    hang, log = (tmp_path_factory.mktemp("ray") / name for name in ("hang", "log"))
    environment = {
        "OCTAVO_TEST_HANG": str(hang),
        "OCTAVO_LOG_STREAM": str(log),
    }
    ports = free_ports(3)
    try:
        with LocalRay(folder, num_cpus=2, environment=environment):
            from octavo_serving.ray_adapter import Controller

            controller = Controller.start(proxy_location="HeadOnly", http_port=ports[-1])
            yield Cluster(controller, folder, ports, hang, log)
    finally:
        folder.remove()
