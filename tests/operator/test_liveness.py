"""Liveness of the whole operator: a failed check means that a restart would help."""

import asyncio

from octavo_operator.health import Limits
from octavo_operator.loop.handlers import WATCHED, WatchTimes
from octavo_testing.operator.fakes.api_http import Trouble
from octavo_testing.operator.fakes.serve_http import Answer
from octavo_testing.operator.running import create, get, running, until


async def test_a_deaf_operator_is_unhealthy(api_server, ray_serve):
    """Here nothing ends a silent watch: the probe must tell."""
    deaf = WatchTimes(server_timeout=3600, client_timeout=3600, inactivity_timeout=3600)
    async with running(deaf, Limits(watch_s=1.0)) as operator:
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        await asyncio.sleep(1.5)
        assert (await get(operator, "/healthz"))[0] == 200, "bookmarks are signs of life"
        api_server.silence()
        await until("it has been silent for long", lambda: operator.watches.ages()["servingdeployments"] > 1.1)
        code, text = await get(operator, "/healthz")
        assert code == 500
        assert "the watch of servingdeployments has received nothing" in text


async def test_an_operator_without_an_api_server_stays_healthy(api_server):
    async with running(limits=Limits(watch_s=1.5)) as operator:
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        api_server.troubles.append(Trouble(lambda call: True, times=10**6))
        api_server.cut(api_server.streams)
        for _ in range(8):
            await asyncio.sleep(0.4)
            assert (await get(operator, "/healthz"))[0] == 200


async def test_a_stuck_queue_is_unhealthy(api_server, ray_serve):
    async with running(limits=Limits(queue_s=0.5)) as operator:
        ray_serve.answers.append(Answer(200, "{}", times=99, delay=60))
        create(api_server, ray_serve.address)
        await until("it hangs at Ray", lambda: operator.queue is not None and operator.queue.lag() > 0.6)
        code, text = await get(operator, "/healthz")
        assert code == 500
        assert "a reconcile has waited or run" in text
