"""Access to Ray: the REST interface of Serve, and import checks that run as Ray jobs."""
