"""Streams to all replicas: admission of requests, their placement, and their retry after a replica is lost."""
