"""A world in memory for the operator: an API server, KubeRay, Ray Serve, users and misfortune, on a virtual clock."""
