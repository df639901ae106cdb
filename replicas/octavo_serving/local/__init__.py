"""A private Ray on this machine, and the end of exactly its processes."""
