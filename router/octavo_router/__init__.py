"""The gateway: front ends, text in and out, and the choice of a replica for each request."""
