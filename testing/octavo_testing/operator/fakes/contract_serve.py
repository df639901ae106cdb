"""What the operator relies on in Ray Serve's REST interface: one suite for the fake and for Ray itself.

Subclass it where the fixture ``target`` is. Applications are ``import_path`` and options that the target can run.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from octavo_operator.model.observed import Reach, ServeState
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.errors import NameConflict, Refused

OWNER = "prod/books"
DEPLOYMENT = "Word"


@dataclass(frozen=True)
class Target:
    client: ServeClient
    address: str
    token: str | None
    import_path: str
    """Builds one deployment ``Word`` that needs next to nothing, whatever its arguments are."""
    seconds: float = 30.0


class ServeContract:
    @pytest.fixture
    def name(self) -> str:
        return f"a{uuid.uuid4().hex[:8]}"

    def application(self, target: Target, name: str, *, owner: str | None = OWNER, **changes: Any) -> dict[str, Any]:
        options = {
            "name": DEPLOYMENT,
            "num_replicas": 1,
            "max_ongoing_requests": 7,
            "user_config": {"threshold": 0.5, "names": ["a", "b"], "nested": {"empty": {}, "none": None}},
            "graceful_shutdown_timeout_s": 1,
            "graceful_shutdown_wait_loop_s": 0.1,
            "health_check_period_s": 2,
            "ray_actor_options": {"num_cpus": 0, "runtime_env": {"env_vars": {"WORD": "one"}}},
        }
        return {
            "name": name,
            "route_prefix": f"/{name}",
            "import_path": target.import_path,
            "args": {"word": "one", **({"owner": owner} if owner else {})},
            "deployments": [{**options, **changes}],
        }

    async def read(self, target: Target, name: str) -> ServeState:
        return await target.client.fetch(target.address, target.token, name)

    async def put(self, target: Target, application: dict[str, Any]) -> None:
        await target.client.deploy(target.address, target.token, application, {"proxy_location": "Disabled"})

    async def until(self, target: Target, what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(int(target.seconds / 0.05)):
            if value := await condition():
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f"never: {what}")

    async def running(self, target: Target, name: str) -> Any:
        async def runs() -> Any:
            found = (await self.read(target, name)).applications.get(name)
            return found if found is not None and found.status == "RUNNING" else None

        return await self.until(target, f"{name} runs", runs)

    async def gone(self, target: Target, name: str) -> None:
        async def is_gone() -> bool:
            return name not in (await self.read(target, name)).applications

        await self.until(target, f"{name} is gone", is_gone)

    async def remove(self, target: Target, name: str, owner: str = OWNER) -> None:
        await target.client.remove(target.address, target.token, name, owner)

    async def test_an_application_that_is_put_runs_with_exactly_that_configuration(self, target, name):
        wanted = self.application(target, name)
        assert (await self.read(target, name)).applications == {}
        await self.put(target, wanted)
        found = await self.running(target, name)
        assert found.config == wanted
        assert found.deployments[DEPLOYMENT].target == 1
        assert found.deployments[DEPLOYMENT].status == "HEALTHY"
        (replica,) = found.deployments[DEPLOYMENT].replicas
        assert replica.state == "RUNNING"
        assert replica.actor_id
        await self.remove(target, name)
        await self.gone(target, name)

    async def test_the_version_is_told(self, target, name):
        seen = await self.read(target, name)
        assert seen.reach is Reach.OK
        assert seen.ray_version.startswith("2.60.")

    async def test_others_are_untouched_by_whatever_is_done_beside_them(self, target, name):
        """Their configuration comes back as it was put, and their replicas stay the same actors."""
        theirs = self.application(target, f"{name}-theirs", owner=None)
        await self.put(target, theirs)
        before = await self.running(target, theirs["name"])
        await self.put(target, self.application(target, name))
        await self.running(target, name)
        changed = self.application(target, name, user_config={"threshold": 0.9})
        await self.put(target, changed)
        assert (await self.running(target, name)).config == changed
        await self.remove(target, name)
        await self.gone(target, name)
        after = await self.running(target, theirs["name"])
        assert after.config == theirs == before.config
        assert after.deployments[DEPLOYMENT].replicas == before.deployments[DEPLOYMENT].replicas
        await self.put(target, self.application(target, name))  # so that the next PUT has something to leave out
        await self.remove(target, name)
        await self.gone(target, name)

    async def test_a_live_change_keeps_replicas_and_a_rolling_one_replaces_them(self, target, name):
        await self.put(target, self.application(target, name))
        (first,) = (await self.running(target, name)).deployments[DEPLOYMENT].replicas
        await self.put(target, self.application(target, name, user_config={"threshold": 0.9}, max_ongoing_requests=9))
        (same,) = (await self.running(target, name)).deployments[DEPLOYMENT].replicas
        assert same.actor_id == first.actor_id
        options = {"num_cpus": 0, "runtime_env": {"env_vars": {"WORD": "two"}}}
        await self.put(target, self.application(target, name, ray_actor_options=options))

        async def replaced() -> bool:
            found = (await self.read(target, name)).applications[name]
            replicas = found.deployments[DEPLOYMENT].replicas if DEPLOYMENT in found.deployments else ()
            ids = {replica.actor_id for replica in replicas if replica.state == "RUNNING"}
            return found.status == "RUNNING" and bool(ids) and first.actor_id not in ids

        await self.until(target, "the replica is replaced", replaced)
        await self.remove(target, name)
        await self.gone(target, name)

    async def test_another_count_starts_and_stops_replicas(self, target, name):
        await self.put(target, self.application(target, name))
        (first,) = (await self.running(target, name)).deployments[DEPLOYMENT].replicas

        async def counted(count: int) -> bool:
            found = (await self.read(target, name)).applications[name].deployments[DEPLOYMENT]
            return found.target == count == found.running == len(found.replicas)

        await self.put(target, self.application(target, name, num_replicas=2))
        await self.until(target, "two replicas", lambda: counted(2))
        found = (await self.read(target, name)).applications[name].deployments[DEPLOYMENT]
        assert first.actor_id in {replica.actor_id for replica in found.replicas}
        await self.put(target, self.application(target, name, num_replicas=1))
        await self.until(target, "one replica", lambda: counted(1))
        await self.remove(target, name)
        await self.gone(target, name)

    async def test_an_application_of_another_owner_is_neither_replaced_nor_removed(self, target, name):
        theirs = self.application(target, name, owner="prod/other")
        await self.put(target, theirs)
        before = await self.running(target, name)
        with pytest.raises(NameConflict, match="owned by prod/other"):
            await self.put(target, self.application(target, name))
        await self.remove(target, name)
        after = await self.running(target, name)
        assert after.config == theirs
        assert after.deployments[DEPLOYMENT].replicas == before.deployments[DEPLOYMENT].replicas
        await self.remove(target, name, "prod/other")
        await self.gone(target, name)

    async def test_a_route_of_another_is_not_taken(self, target, name):
        theirs = self.application(target, f"{name}-theirs", owner="prod/other")
        await self.put(target, theirs)
        taken = {**self.application(target, name), "route_prefix": theirs["route_prefix"]}
        with pytest.raises(NameConflict, match="route prefix"):
            await self.put(target, taken)
        await self.remove(target, theirs["name"], "prod/other")
        await self.gone(target, theirs["name"])

    async def test_an_application_that_is_put_back_while_it_goes_comes_back(self, target, name):
        await self.put(target, self.application(target, name))
        await self.running(target, name)
        await self.remove(target, name)
        await self.put(target, self.application(target, name))
        assert (await self.running(target, name)).config == self.application(target, name)
        await self.remove(target, name)
        await self.gone(target, name)

    async def test_an_unreadable_configuration_is_refused_and_changes_nothing(self, target, name):
        await self.put(target, self.application(target, name))
        before = await self.running(target, name)
        with pytest.raises(Refused):
            await self.put(target, self.application(target, name, num_replicas=-3))
        after = await self.running(target, name)
        assert after.config == before.config
        await self.remove(target, name)
        await self.gone(target, name)
