"""The choice of the work of each step: the queue, rows, victims."""
