"""The contract between Octavo's parts: resource and settings types, block hashes, wire messages, errors."""

__version__ = "0.1.0"
