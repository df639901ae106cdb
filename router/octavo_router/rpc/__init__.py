"""The gRPC interface ``octavo.v1.Inference``."""
