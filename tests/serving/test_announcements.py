from octavo_serving.announcements import Announcement, Registry

ONE, TWO = Announcement("a", {"port": 1}), Announcement("b", {"port": 2})


def test_a_listener_hears_what_is_known_and_every_change() -> None:
    registry, heard = Registry(), []
    registry.publish("app#Engine", (ONE,))
    registry.subscribe("app#Engine", heard.append)
    registry.publish("app#Engine", (ONE, TWO))
    registry.publish("other#Engine", ())
    assert heard == [(ONE,), (ONE, TWO)]


def test_a_listener_that_left_hears_nothing() -> None:
    registry, heard = Registry(), []
    registry.subscribe("app#Engine", heard.append)
    registry.unsubscribe("app#Engine", heard.append)
    registry.publish("app#Engine", (ONE,))
    assert heard == []


def test_no_replica_is_not_the_same_as_not_knowing() -> None:
    registry, heard = Registry(), []
    registry.subscribe("app#Engine", heard.append)
    assert heard == []
    registry.publish("app#Engine", ())
    assert heard == [()]
