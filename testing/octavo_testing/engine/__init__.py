"""Support of the engine's tests: the core with a fake runner, a tiny model, gateways by hand, GGUF files."""
