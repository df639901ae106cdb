"""All code that uses Ray: the Serve deployments and the application that holds them."""
