"""The states in which a request of the core can be when something happens to it."""

STATES = ["waiting", "mid-chunk", "running", "preempted", "in flight", "forking"]


def bring_to(session, state):
    """Leave the only request of the session in ``state``."""
    core = session.core
    if state == "waiting":
        return
    if state == "forking":
        while not any(work.choices for plan, _ in session.plans for work in plan.work):
            if session.plans:
                session.commit()
                session.collect()
            session.schedule()
        return
    turns = {"mid-chunk": 1, "running": 6, "preempted": 6, "in flight": 6}[state]
    for _ in range(turns):
        session.turn()
    if state == "preempted":
        while session.force_preemption():
            pass
        assert core.load().num_requests_waiting > 0
    if state == "in flight":
        while len(session.plans) < session.depth:
            session.schedule()
