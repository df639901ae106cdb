"""The gateway: text in, text out, and the choice of a replica for every request."""
