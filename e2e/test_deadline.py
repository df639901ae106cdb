"""A deletion ends after five minutes, although the Ray that it would clean up never answers again."""

import time
from pathlib import Path

import pytest

from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation
from octavo_testing.kube.serve_stub import running_stub
from octavo_testing.kube.serving import Serving
from octavo_testing.waiting import eventually

pytestmark = pytest.mark.full

DEADLINE_S = 300


@pytest.mark.timeout(420)
def test_a_deletion_ends_at_its_deadline_if_ray_is_gone_for_good(
    namespace: Kubectl, installation: Installation, tmp_path: Path
) -> None:
    operator = installation.operator(name="deadline")
    goes, stays = Serving(namespace, "goes"), Serving(namespace, "stays")
    folders = [tmp_path / name for name in ("stays", "goes")]
    for folder in folders:
        folder.mkdir()
    with running_stub(folders[0]) as living, operator:
        with running_stub(folders[1]) as dying:
            for serving, ray in ((goes, dying), (stays, living)):
                external = {"external": {"dashboardURL": ray.urls[0]}}
                namespace.apply(deployment(serving.name, rayCluster=external))
                serving.wait_ready()
        began = time.monotonic()
        namespace.run("delete", "sdep/goes", "--wait=false")
        time.sleep(DEADLINE_S - 15)
        assert goes.document["metadata"]["deletionTimestamp"]
        stays.edit({"engine": {"maxNumSeqs": 7}})
        stays.wait_ready()
        eventually("it is gone", lambda: not goes.exists, timeout_s=60)
        took = time.monotonic() - began
        print(f"deleted after {took:.1f} s")
        assert took >= DEADLINE_S - 2, "a deletion timestamp has whole seconds"
        assert goes.said("CleanupAbandoned")
