"""The model runner: rows, inputs of a step, sampling."""
