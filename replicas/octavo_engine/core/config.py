"""What the engine's core is told once, at its start."""

from dataclasses import dataclass

from octavo_api.errors import ConfigurationError
from octavo_api.settings import SchedulingPolicy


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Sizes and policies. ``num_blocks`` blocks of ``block_size`` tokens are all the KV cache there is.

    ``long_prefill_token_threshold`` 0 is no limit; ``seed`` None draws the seeds of requests without one from the
    operating system; ``steps_in_flight`` is the number of plans that may be made ahead of the oldest commit.
    Raises ``ConfigurationError`` where no request could ever run, or where running sequences could starve each other.
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
        """Tokens that the whole KV cache holds."""
        return self.num_blocks * self.block_size
