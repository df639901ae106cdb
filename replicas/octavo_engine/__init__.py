"""Octavo's engine: scheduler, block pool, models, sampler, and its gRPC service.

``LLM`` is the entry without a service. It is imported when it is first read, because torch takes seconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_engine.llm import LLM as LLM

__all__ = ["LLM"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo_engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
