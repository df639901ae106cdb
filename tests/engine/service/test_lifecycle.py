import asyncio
import math
import signal
import socket
import sys

import grpc
import pytest

from octavo_api.errors import PortInUse, StartupError
from octavo_api.v1 import sampling_pb2
from octavo_engine.__main__ import main
from octavo_engine.engine import MAX_CONSECUTIVE_FAILURES
from octavo_testing.engine.replica import continuation
from octavo_testing.waiting import eventually_async

PROMPT = list(range(10, 30))
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


async def test_a_drain_ends_no_stream_and_takes_no_new_one(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    running = [await gateway.submit(i, [i, *PROMPT], max_tokens=20) for i in range(5)]
    await gateway.until(lambda: replica.server.active_requests == 5)
    await replica.runner.allow(2)
    drain = asyncio.create_task(replica.server.drain(timeout_s=20))
    await gateway.until(lambda: gateway.step.load.draining)
    refused = await gateway.submit(99, PROMPT)
    await gateway.until(lambda: refused.error)
    assert refused.error.kind == "Draining"
    assert not drain.done()
    replica.runner.free()
    assert await drain
    await gateway.finished(*running)
    assert [r.tokens[0] for r in running] == [continuation([i, *PROMPT], 20) for i in range(5)]
    assert gateway.step.load.draining


async def test_a_drain_gives_up_after_its_time(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    await gateway.submit(1, PROMPT, max_tokens=20)
    await replica.runner.at_gate()
    assert not await replica.server.drain(timeout_s=0.01)


async def test_a_drain_of_an_idle_replica_is_done_at_once(serve, attach):
    replica = await serve()
    await attach(replica)
    assert await replica.server.drain(timeout_s=20)


async def test_a_drain_ends_when_the_gateways_leave(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    await gateway.submit(1, PROMPT, max_tokens=20)
    await replica.runner.at_gate()
    drain = asyncio.create_task(replica.server.drain(timeout_s=20))
    await gateway.until(lambda: gateway.step.load.draining)
    gateway.disconnect()
    assert await drain


async def test_a_stop_ends_every_request_once_and_then_the_stream(serve, attach):
    replica = await serve(step_time_s=0.002)
    gateway = await attach(replica)
    running = [await gateway.submit(i, PROMPT, n=2, max_tokens=400) for i in range(5)]
    await gateway.until(lambda: all(r.tokens[0] for r in running))
    await replica.server.stop()
    assert await gateway.ended() == grpc.StatusCode.OK
    assert {r.error.kind for r in running} == {"Draining"}
    assert replica.server.active_requests == 0
    assert replica.server.heartbeat_age_s() == math.inf


async def test_a_step_that_fails_ends_its_requests_and_no_other(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    failing = await gateway.submit(1, PROMPT, max_tokens=20, n=2)
    await replica.runner.allow(3)
    await replica.runner.at_gate()
    replica.runner.fail_next = 1
    later = await gateway.submit(2, [1, *PROMPT], max_tokens=20)
    replica.runner.free()
    await gateway.finished(failing, later)
    assert failing.error.kind == "EngineFailure"
    assert "fire" not in failing.error.message
    assert later.tokens[0] == continuation([1, *PROMPT], 20)
    assert replica.server.heartbeat_age_s() < 5


async def test_a_failure_with_two_steps_in_flight_ends_both_steps_requests(serve, attach):
    replica = await serve(stepped=True, steps_in_flight=2)
    gateway = await attach(replica)
    failing = await gateway.submit(1, PROMPT, max_tokens=20)
    await replica.runner.allow(3)
    await replica.runner.at_gate()
    replica.runner.fail_next = 1
    replica.runner.free()
    await gateway.finished(failing)
    assert failing.error.kind == "EngineFailure"
    later = await gateway.submit(2, [1, *PROMPT], max_tokens=20)
    await gateway.finished(later)
    assert later.tokens[0] == continuation([1, *PROMPT], 20)


async def test_a_runner_that_keeps_failing_ends_the_engine_and_every_request(serve, attach):
    replica = await serve(stepped=True, max_num_seqs=1)
    gateway = await attach(replica)
    replica.runner.fail_next = MAX_CONSECUTIVE_FAILURES
    requests = [await gateway.submit(i, PROMPT, max_tokens=20) for i in range(10)]
    await gateway.until(lambda: replica.server.active_requests == 10)
    replica.runner.free()
    await gateway.finished(*requests)
    await asyncio.wait_for(replica.server.failed.wait(), 10)
    assert {r.error.kind for r in requests} == {"EngineFailure"}
    assert replica.server.heartbeat_age_s() == math.inf
    await gateway.until(lambda: gateway.step.load.draining)
    refused = await gateway.submit(99, PROMPT)
    await gateway.finished(refused)
    assert refused.error.kind == "Draining"
    assert replica.server.active_requests == 0


async def test_the_heartbeat_is_young_when_idle_and_ages_in_a_step(serve, attach):
    replica = await serve(stepped=True)
    assert replica.server.heartbeat_age_s() < 5
    gateway = await attach(replica)
    await gateway.submit(1, PROMPT, max_tokens=20)
    await replica.runner.at_gate()
    first = replica.server.heartbeat_age_s()
    seq = gateway.seq
    await gateway.until(lambda: gateway.seq > seq + 1)
    assert replica.server.heartbeat_age_s() > first


async def test_a_stalled_engine_sends_no_beats(serve, attach, monkeypatch):
    monkeypatch.setattr("octavo_engine.service.server.BEAT_INTERVAL_S", 0.02)
    monkeypatch.setattr("octavo_engine.service.server.STALLED_AFTER_S", 0.1)
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    received = await gateway.submit(1, PROMPT, max_tokens=3)
    await replica.runner.at_gate()
    [peer] = replica.server._peers
    await eventually_async(
        "the engine stalls and nothing is being sent",
        lambda: replica.server.heartbeat_age_s() > 0.15 and not replica.blocked_s(peer.gateway),
    )
    sent_at = peer.sent_at
    await asyncio.sleep(0.4)
    assert peer.sent_at == sent_at
    replica.runner.free()
    await gateway.finished(received)


async def test_the_error_of_a_port_in_use_names_the_port(serve):
    replica = await serve()
    with pytest.raises(PortInUse, match=str(replica.port)):
        await serve(port=replica.port)


async def test_a_port_that_a_plain_socket_holds_is_named(serve):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            await serve(port=port)


async def test_a_free_port_may_be_asked_for_and_used_again(serve, attach):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    first = await serve(port=port)
    gateway = await attach(first)
    await first.server.stop()
    await gateway.ended()
    assert (await attach(await serve(port=port))).hello


async def test_an_address_of_another_machine_is_refused(serve, monkeypatch):
    from octavo_engine.service.listener import bind

    with pytest.raises(StartupError, match=r"192\.0\.2\.1"):
        bind(grpc.aio.server(), "192.0.2.1", 5000)


@pytest.fixture
async def spawn(tmp_path):
    """Starts the command and waits for the line that names its port."""
    processes = []
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")

    async def start(*arguments: str):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo_engine", "--synthetic", "--model", "synthetic://1000",
            "--secret-file", str(secret), *arguments, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        processes.append(process)
        lines = []
        async for line in process.stderr:
            lines.append(line.decode().strip())
            if lines[-1].startswith("listening on "):
                return process, int(lines[-1].rpartition(":")[2])
        return await process.wait(), "\n".join(lines)

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_gateway_sees_the_death_of_the_process(spawn, attach):
    process, port = await spawn("--synthetic-step-ms", "5")
    gateway = await attach(port)
    received = await gateway.submit(1, PROMPT, max_tokens=4000)
    await gateway.until(lambda: received.tokens[0])
    process.kill()
    assert await gateway.ended() == grpc.StatusCode.UNAVAILABLE
    assert not received.done


async def test_sigterm_drains(spawn, attach):
    process, port = await spawn("--synthetic-step-ms", "2", "--set", "max_num_seqs=4")
    gateway = await attach(port)
    requests = [await gateway.submit(i, [i, *PROMPT], max_tokens=100) for i in range(8)]

    def arrived() -> int:
        load = gateway.step.load
        return load.num_requests_running + load.num_requests_waiting + sum(request.done for request in requests)

    await gateway.until(lambda: arrived() == 8)
    process.send_signal(signal.SIGTERM)
    await gateway.finished(*requests)
    assert [r.tokens[0] for r in requests] == [continuation([i, *PROMPT], 100) for i in range(8)]
    assert await gateway.ended() == grpc.StatusCode.OK
    assert await process.wait() == 0


async def test_sigint_stops_at_once(spawn, attach):
    process, port = await spawn("--synthetic-step-ms", "5")
    gateway = await attach(port)
    received = await gateway.submit(1, PROMPT, max_tokens=4000)
    await gateway.until(lambda: received.tokens[0])
    process.send_signal(signal.SIGINT)
    await gateway.finished(received)
    assert received.error.kind == "Draining"
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "max_num_seqs=none"], "--set.max_num_seqs"),
        (["--set", "max_num_seq=4"], "did you mean max_num_seqs?"),
        (["--set", "max_num_seqs"], "KEY=VALUE"),
        (["--model", "synthetic://many"], "synthetic://VOCAB_SIZE"),
        (["--secret-file", "/nonexistent/secret"], "/nonexistent/secret"),
        (["--port", "65536"], "0 to 65535"),
    ],
)
def test_a_wrong_command_line_is_explained(capsys, arguments, message):
    assert main(["--synthetic", "--model", "synthetic://1000", *arguments]) == 1
    assert message in capsys.readouterr().err


async def test_the_command_explains_a_port_in_use(spawn, serve):
    replica = await serve()
    code, output = await spawn("--port", str(replica.port))
    assert code == 1
    assert f"gRPC: port {replica.port} of " in output
    assert "Traceback" not in output
