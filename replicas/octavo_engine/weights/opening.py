"""Choice of the reader for a model's files."""

from octavo_api.model_source import Format, ModelFiles
from octavo_engine.weights.checkpoint import Checkpoint
from octavo_engine.weights.gguf_checkpoint import GgufCheckpoint
from octavo_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Read headers only. Raises ``ModelError`` naming the file and the fault."""
    return GgufCheckpoint(files.path) if files.format is Format.GGUF else SafetensorsCheckpoint(files.path)
