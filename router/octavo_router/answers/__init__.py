"""The life of one request: prompt to token ids, output of an engine to text."""
