"""The ``Engine`` deployment: one engine replica under Serve's care.

Module level stays light. Serve's build task and its controller import it, and neither may load torch.
"""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar

from octavo_api.errors import OctavoError
from octavo_api.resource.serve_config import (
    ENGINE,
    ApplicationArgs,
    Bind,
    EngineUserConfig,
    engine_settings,
    read_environment,
)
from octavo_serving import autoscaling, logs, ray_adapter
from octavo_serving.secrets import engine_secret

if TYPE_CHECKING:
    from octavo_engine.startup.loading import LoadedEngine

logger = logging.getLogger("octavo_serving.engine_replica")


class EngineStalled(OctavoError):
    """The engine's thread has not finished a step for too long. Serve replaces the replica."""


class EngineReplica:
    """Replica that loads the model in its constructor, which Serve awaits.

    It serves the replica protocol until it is drained.
    """

    heartbeat_limit_s: ClassVar[float] = 60.0
    """Maximum seconds without a heartbeat of the engine's thread.

    A step takes seconds at most, so a longer silence is a hang.
    """

    async def __init__(self, args: ApplicationArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        self._replica = ray_adapter.replica_id().unique_id
        packages = ("octavo_engine", "octavo_kernels", "octavo_serving")
        with logs.replica_logs(packages, ray_adapter.application_name(), ENGINE, self._replica):
            await self._start(args)

    async def _start(self, args: ApplicationArgs) -> None:
        from octavo_engine.engine import freeze_gc_heap
        from octavo_engine.service.server import EngineServer

        self._environment = read_environment(os.environ)
        self._config = EngineUserConfig.model_validate(ray_adapter.initial_user_config())
        self._computed = 0
        self._host = "127.0.0.1" if args.bind is Bind.LOOPBACK else ray_adapter.own_address()
        loaded = await asyncio.to_thread(self.load, args)
        secret = await asyncio.to_thread(engine_secret, ray_adapter.application_name())
        self._server = await EngineServer.start(loaded, replica=self._replica, host=self._host, secret=secret)
        freeze_gc_heap()
        logger.info("engine %s listens on %s:%d", self._replica, self._host, self._server.port)

    def load(self, args: ApplicationArgs) -> "LoadedEngine":
        """Read the model. Block for seconds to minutes. Raise ``StartupError``."""
        from octavo_engine.startup.loading import load_engine

        return load_engine(
            args.model_uri,
            args.model_revision,
            engine_settings(self._environment, self._config),
            num_cpus=ray_adapter.assigned_cpus(),
            replicas_on_node=self._environment.replicas_on_node,
            memory_limit=self._environment.memory_limit,
            report=lambda line: logger.info("engine %s: %s", self._replica, line),
        )

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"host": self._host, "port": self._server.port}

    def record_autoscaling_stats(self) -> dict[str, float]:
        load = self._server.load()
        computed = load.prompt_tokens_total + load.generation_tokens_total
        share = autoscaling.share(
            requests=load.num_requests_running + load.num_requests_waiting,
            target_requests=self._config.target_requests,
            blocks_held=load.kv_blocks_pinned,
            blocks=load.kv_blocks,
            target_cache_percent=self._config.target_cache_percent,
            active=computed != self._computed,
        )
        self._computed = computed
        return {autoscaling.SHARE: share}

    async def wake(self) -> None:
        """Do nothing. Serve starts a replica because a gateway's call waits for one."""

    async def check_health(self) -> None:
        """Raise ``EngineStalled`` if the engine's thread hangs. This event loop still answers then."""
        age = self._server.heartbeat_age_s()
        if age > self.heartbeat_limit_s:
            raise EngineStalled(
                f"engine {self._replica}: {age:.0f} s without a step, allowed: {self.heartbeat_limit_s:.0f} s"
            )

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        config = EngineUserConfig.model_validate(user_config)
        if config != self._config:
            self._server.reconfigure(engine_settings(self._environment, config))
            self._config = config
            logger.info("engine %s applied %s", self._replica, config.settings)

    async def __del__(self) -> None:
        """Wait for this replica's streams, because Serve knows none of them."""
        if not hasattr(self, "_server"):
            return
        drain_seconds = self._config.drain_seconds
        if not await self._server.drain(drain_seconds):
            logger.warning("engine %s aborts streams that did not end within %d s", self._replica, drain_seconds)
        await self._server.stop()
