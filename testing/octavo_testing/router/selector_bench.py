"""A selector over replicas whose load and cache a test sets directly."""

from octavo_api.settings import RoutingPolicy
from octavo_router.routing.chain import Chain, HashSpace
from octavo_router.routing.cost import Candidate
from octavo_router.routing.index import DictIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.replica_load import LoadView
from octavo_router.routing.select import Selector

SPACE = HashSpace("model", "float32", 16, 1)


class SelectorBench:
    """A selector and replicas whose load and cache a test sets directly."""

    def __init__(self):
        self.index = DictIndex()
        self.selector = Selector(self.index, Overlay())
        self.slots = {}
        self.views = {}
        self.space = SPACE
        self.now = 10.0

    def replica(self, name, **view):
        if name not in self.slots:
            self.slots[name] = self.index.add_slot()
            self.index.set_live(self.slots[name], True)
        defaults = {
            "known": True,
            "queued_tokens": 0,
            "num_requests": 0,
            "num_decoding": 0,
            "prefill_tokens_per_s": 1000.0,
            "decode_step_s": 0.01,
            "kv_blocks": 1000,
            "kv_blocks_used": 0,
        }
        self.views[name] = LoadView(**{**defaults, **view})
        return name

    def candidates(self, confidence=1.0):
        return [
            Candidate.of(
                view,
                name=name,
                rendezvous_key=hash_of(name),
                slot=self.slots[name],
                space=self.space,
                confidence=confidence,
            )
            for name, view in sorted(self.views.items())
        ]

    def hold(self, name, keys):
        self.index.store(self.slots[name], keys)

    def select(self, keys, *, tail=99, prompt_tokens=None, output_tokens=10, policy=RoutingPolicy.PREFIX, **options):
        return self.selector.select(
            self.candidates(**options),
            {self.space: Chain(b"", tuple(keys), tail)},
            prompt_tokens=len(keys) * 16 + 1 if prompt_tokens is None else prompt_tokens,
            output_tokens=output_tokens,
            policy=policy,
            now=self.now,
        )


def hash_of(name):
    return sum(ord(letter) << 7 * index for index, letter in enumerate(name))
