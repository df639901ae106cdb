"""One real Kubernetes node on this machine, in namespaces of its own, which take everything with them when they end."""
