"""Random edits and faults in the network around the whole operator; in the end everything is as the specs ask."""

import asyncio
import random
import time

import pytest

from octavo_operator.main import Operator
from octavo_operator.model import kinds
from octavo_operator.model.observed import Key
from octavo_testing.operator.fakes.api_http import FakeApiServer, Trouble
from octavo_testing.operator.fakes.serve_http import Answer, FakeServe
from octavo_testing.operator.running import create, ready, running, status


class Script:
    """Random steps of a user and of the network, on three deployments and a foreign application."""

    def __init__(self, api_server: FakeApiServer, ray_serve: FakeServe, seed: int) -> None:
        self.api_server, self.ray_serve = api_server, ray_serve
        self.rng = random.Random(seed)
        self.theirs = ray_serve.foreign("theirs")
        self.alive: set[str] = set()

    async def play(self) -> None:
        for _ in range(self.rng.randint(6, 14)):
            self.rng.choice([self.edit, self.edit, self.fail])()
            await asyncio.sleep(self.rng.choice([0, 0.02, 0.1, 0.3]))

    def fail(self) -> None:
        """Break a watch, a call, a list or Ray, or remove an application."""
        rng, api_server, ray_serve = self.rng, self.api_server, self.ray_serve
        match rng.randrange(9):
            case 0:
                api_server.silence()
            case 1:
                api_server.end_with_gone()
            case 2:
                api_server.cut(api_server.streams)
            case 3:
                kind = rng.choice([kinds.SERVING_DEPLOYMENT, kinds.EVENT])
                code = rng.choice([409, 429, 500, 503, 0])
                after = rng.random() < 0.5
                matches = lambda call: call.plural == kind.plural and call.verb == "patch"  # noqa: E731
                api_server.troubles.append(Trouble(matches, code, rng.randint(1, 4), after=after, retry_after="1"))
            case 4:
                slow = Trouble(lambda call: call.verb == "list", 200, rng.randint(1, 3), delay=rng.uniform(0.1, 0.8))
                api_server.troubles.append(slow)
            case 5:
                ray_serve.answers.append(Answer(rng.choice([0, 500, 503, 401]), "no", rng.randint(1, 6)))
            case 6:
                ray_serve.answers.append(Answer(503, "", 1, delay=rng.uniform(0.1, 0.5)))
            case 7:
                ray_serve.ray.lose_everything()
                ray_serve.foreign("theirs")
            case 8 if self.alive:
                name = f"default.{rng.choice(sorted(self.alive))}"
                kept = [found.config for other, found in ray_serve.ray.applications.items() if other != name]
                ray_serve.ray.put({"applications": kept})

    def edit(self) -> None:
        """Create, edit or delete a deployment."""
        api, rng = self.api_server.api, self.rng
        name = f"d{rng.randrange(3)}"
        found = api.get("ServingDeployment", "default", name)
        if found is None:
            create(self.api_server, self.ray_serve.address, name)
            self.alive.add(name)
        elif "deletionTimestamp" in found["metadata"]:
            return
        elif rng.random() < 0.3:
            api.delete("ServingDeployment", "default", name)
            self.alive.discard(name)
        else:
            changes = {"replicas": rng.randint(1, 3)} | ({"suspend": rng.random() < 0.2})
            api.edit("ServingDeployment", "default", name, lambda found: found["spec"].update(changes))

    def as_asked(self) -> bool:
        """Return True if deployments and applications are as the specs ask."""
        server, applications = self.api_server, self.ray_serve.ray.applications
        documents = {item["metadata"]["name"]: item for item in server.api.listed("ServingDeployment", "default")}
        if set(documents) != self.alive:
            return False
        serving = {name for name in self.alive if not documents[name]["spec"].get("suspend")}
        return (
            set(applications) == {"theirs", *(f"default.{name}" for name in serving)}
            and all(ready(server, name) for name in serving)
            and all(status(server, name)["readyReplicas"] == documents[name]["spec"]["replicas"] for name in serving)
        )

    def reconcile_soon(self, operator: Operator) -> None:
        """Shorten the delay of regular reconciles, since time is real here. Only watches report new generations."""
        for name in sorted(self.alive):
            found = self.api_server.api.get("ServingDeployment", "default", name)
            if found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]:
                assert operator.queue is not None
                operator.queue.add(Key("default", name), 0.5)


@pytest.mark.parametrize("seed", range(30))
async def test_any_network_fault_ends_as_the_specs_ask(api_server, ray_serve, seed):
    script = Script(api_server, ray_serve, seed)
    async with running() as operator:
        await script.play()
        deadline = time.monotonic() + 200
        while not script.as_asked():
            assert time.monotonic() < deadline, (script.alive, api_server.api.objects, ray_serve.ray.applications)
            script.reconcile_soon(operator)
            await asyncio.sleep(0.1)
    assert ray_serve.ray.applications["theirs"].config == script.theirs
    assert not any(method == "DELETE" and "/serve/" in path for method, path in ray_serve.calls)
