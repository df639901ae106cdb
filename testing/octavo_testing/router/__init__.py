"""Test support for the router: a model of bytes, scripted pools, and replicas that speak the protocol."""
