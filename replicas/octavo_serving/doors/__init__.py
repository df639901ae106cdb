"""Front doors of an application: its ports on a node, the published addresses, and the second door behind Serve."""
