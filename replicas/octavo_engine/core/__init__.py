"""The schedule of all computation, and the places of its KV. Pure Python: no torch, no clock."""
