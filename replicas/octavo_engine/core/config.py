"""Sizes and policies of the engine's core."""

from dataclasses import dataclass, replace
from typing import Any, Self

from octavo_api.blocks import HashSpace
from octavo_api.errors import ConfigurationError
from octavo_api.settings import Change, EngineSettings, SchedulingPolicy, change_of


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Sizes and policies. ``num_blocks`` blocks of ``block_size`` tokens are the whole KV cache.

    ``long_prefill_token_threshold`` 0 is no limit. Requests without a seed draw theirs from a generator that starts
    from ``seed``; with None, the operating system seeds that generator. ``steps_in_flight`` is the maximum number of
    plans that are made and not committed.

    Raises ``ConfigurationError`` if no request could ever run, or if running sequences could starve each other.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    max_model_len: int
    max_num_queued_reqs: int
    enable_prefix_caching: bool
    scheduling_policy: SchedulingPolicy
    eos_token_ids: frozenset[int]
    model_key: str
    kv_dtype: str
    seed: int | None
    steps_in_flight: int = 1

    @classmethod
    def from_settings(cls, settings: EngineSettings, **facts: Any) -> Self:
        """Take each field from the setting of its name, or from ``facts``.

        The facts are values that the model and the machine decide.
        """
        named = {name: getattr(settings, name) for name in cls.__slots__ if hasattr(settings, name)}
        return cls(**{**named, "max_num_seqs": settings.num_seqs, **facts})

    def with_live(self, settings: EngineSettings) -> Self:
        """Return this configuration with the settings that change while requests run."""
        live = [name for name in type(settings).model_fields if change_of(type(settings), name) is Change.LIVE]
        return replace(self, **{name: getattr(settings, name) for name in live})

    def __post_init__(self) -> None:
        lowest = {
            "num_blocks": 1,
            "block_size": 1,
            "max_num_seqs": 1,
            "long_prefill_token_threshold": 0,
            "max_model_len": 2,
            "max_num_queued_reqs": 0,
            "steps_in_flight": 1,
        }
        for name, limit in lowest.items():
            if (value := getattr(self, name)) < limit:
                raise ConfigurationError(f"{name}: got {value}, allowed: at least {limit}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"max_num_batched_tokens: got {self.max_num_batched_tokens}, allowed: at least max_num_seqs, "
                f"{self.max_num_seqs}, so that every running sequence gets a token in every step"
            )

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that the whole KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def hash_space(self) -> HashSpace:
        """Parameters of this replica's block hashes. Block events contain every hash, so the stride is 1."""
        return HashSpace(self.model_key, self.kv_dtype, self.block_size)
