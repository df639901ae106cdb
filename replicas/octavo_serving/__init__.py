"""Everything that touches Ray: the Serve deployments and the application that holds them."""
