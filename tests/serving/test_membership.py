import asyncio

from octavo_serving.membership import Membership


class Recorder:
    def __init__(self) -> None:
        self.applied: list[set[str]] = []
        self.changed = asyncio.Event()

    def __call__(self, addresses) -> None:
        self.applied.append(set(addresses))
        self.changed.set()


def membership(recorder: Recorder, forget_s: float) -> Membership[str]:
    return Membership(asyncio.get_running_loop(), recorder, forget_s=forget_s)


async def test_a_replica_that_is_left_out_for_a_moment_stays() -> None:
    recorder = Recorder()
    members = membership(recorder, 60.0)
    members.announce({"a": "A"})
    members.announce({})
    members.announce({"a": "A"})
    members.announce({"a": "A", "b": "B"})
    assert recorder.applied == [{"A"}, {"A", "B"}]
    members.close()


async def test_a_replica_that_stays_away_is_forgotten_and_the_others_are_not() -> None:
    recorder = Recorder()
    members = membership(recorder, 0.01)
    members.announce({"a": "A", "b": "B"})
    recorder.changed.clear()
    members.announce({"b": "B"})
    assert recorder.applied == [{"A", "B"}]
    async with asyncio.timeout(5):
        await recorder.changed.wait()
    assert recorder.applied == [{"A", "B"}, {"B"}]


async def test_a_replica_that_comes_back_elsewhere_is_known_there_at_once() -> None:
    recorder = Recorder()
    members = membership(recorder, 60.0)
    members.announce({"a": "A"})
    members.announce({"a": "A2"})
    assert recorder.applied == [{"A"}, {"A2"}]


async def test_nothing_is_forgotten_after_the_end() -> None:
    recorder = Recorder()
    members = membership(recorder, 0.0)
    members.announce({"a": "A"})
    members.announce({})
    members.close()
    await asyncio.sleep(0.01)
    assert recorder.applied == [{"A"}]
