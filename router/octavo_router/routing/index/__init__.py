"""Which replica holds how much of a prefix: contract, reference model, and the implementation that serves."""

from octavo_router.routing.index.base import Digest, Hit, PrefixIndex
from octavo_router.routing.index.dict_index import DictIndex

__all__ = ["DictIndex", "Digest", "Hit", "PrefixIndex"]
