"""Index from block hashes to the replicas that hold them: contract, reference model, and the implementation in use."""

from octavo_router.routing.index.base import Hit, PrefixIndex
from octavo_router.routing.index.dict_index import DictIndex

__all__ = ["DictIndex", "Hit", "PrefixIndex"]
