"""The KV cache: blocks, held prefixes, block tables, and the events that routers follow."""
