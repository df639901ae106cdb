"""Checkpoints: safetensors folders and GGUF files."""
