import pytest

from octavo_testing.router.feed_scene import FeedScene
from octavo_testing.router.selector_bench import SelectorBench


@pytest.fixture
def bench():
    return SelectorBench()


@pytest.fixture
def scene():
    return FeedScene()


@pytest.fixture
def make_scene():
    return FeedScene
