"""Service for gateways over gRPC: one server, one peer for each gateway, messages both ways."""
