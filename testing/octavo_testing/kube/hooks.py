"""Hooks of pytest for ``e2e/``: markers, reasons to skip, and the build of missing programs."""

import pytest

from octavo_testing.kube.tools import API_SERVER_TIER, NODE_TIER, ToolsMissing, ensure, kuberay_crds, why_not
from octavo_testing.node import node as nodes
from octavo_testing.node import requirements
from octavo_testing.processes import StartFailed

NODE_FAILURE = pytest.StashKey[str | None]()
"""Reason why no node could be prepared; None if it could."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apiserver: starts a real kube-apiserver and KubeRay")
    config.addinivalue_line("markers", "node: starts a real node, with pods")
    config.addinivalue_line("markers", "full: takes minutes; in `make e2e-full` only")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.apiserver)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose programs are not available, with the reason."""
    reason = why_not(*API_SERVER_TIER)
    node_reason = reason or requirements.reason_against()
    for item in items:
        if why := node_reason if item.get_closest_marker("node") else reason:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build missing programs before the first test begins: a build takes longer than any test may."""
    wanted = [item for item in session.items if not any(item.iter_markers("skip"))]
    if session.config.option.collectonly or not wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        try:
            ensure(*API_SERVER_TIER)
            kuberay_crds()
        except ToolsMissing as error:
            raise pytest.UsageError(str(error)) from error
        if any(item.get_closest_marker("node") for item in wanted):
            session.config.stash[NODE_FAILURE] = _prepare_node()


def _prepare_node() -> str | None:
    """Return what failed: tests without a node run all the same."""
    try:
        requirements.install()
        ensure(*NODE_TIER)
        nodes.operator_image()
    except (ToolsMissing, StartFailed) as error:
        return str(error)
    return None
