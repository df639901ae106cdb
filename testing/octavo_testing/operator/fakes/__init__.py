"""HTTP in front of the sweep's API server and Ray, with the faults that only a network has."""
