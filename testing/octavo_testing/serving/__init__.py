"""Real Ray Serve on this machine with the real application, and its requests and replicas seen from outside."""
