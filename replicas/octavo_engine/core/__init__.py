"""What is computed when, and where its KV lives. Pure Python: no torch, no clock."""
