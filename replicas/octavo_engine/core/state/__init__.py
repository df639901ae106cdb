"""Records that the modules of the core share: requests and sequences, blocks, steps in flight."""
