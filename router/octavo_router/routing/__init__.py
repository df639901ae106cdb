"""Choice of a replica for each request: prefix index, load, cost and selection. Pure: the caller passes the time."""
