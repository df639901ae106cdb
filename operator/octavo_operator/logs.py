"""One JSON object a line on stderr, or plain text on a terminal."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


class JsonFormatter(logging.Formatter):
    """Formatter of ``time``, ``level``, ``logger``, ``message``, and ``deployment`` and ``error`` if present."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (deployment := getattr(record, "deployment", None)) is not None:
            entry["deployment"] = deployment
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, *, as_json: bool) -> None:
    """Configure the root logger; ``level`` is ``debug``, ``info``, ``warning`` or ``error``."""
    handler = logging.StreamHandler(sys.stderr)
    plain = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(plain))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Callers log their own requests; kopf logs every event that it passes on. Its message that it leaves signals alone
    # is no problem: it runs in a thread of its own.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    for noisy in ("asyncio", "aiohttp.access", "kopf.objects"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
