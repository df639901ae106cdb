"""Streams to all replicas: admission of requests, their dispatch, and their retry after a replica is lost."""
