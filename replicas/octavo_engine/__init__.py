"""Octavo's engine: scheduler, block pool, models, sampler, and its gRPC service."""
