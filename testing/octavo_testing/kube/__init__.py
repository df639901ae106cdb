"""A real Kubernetes API server on this machine, with everything around it."""
