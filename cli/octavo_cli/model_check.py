"""Finds out within a second or two that a model cannot be served, before anything is started."""

from octavo_api.deployment import Model
from octavo_api.model_source import locate


def check_model(model: Model) -> None:
    """Fetches what is remote, reads headers and tokenizer; raises ``ModelError``."""
    from octavo_engine.weights.checkpoint import open_checkpoint
    from octavo_router.text import ModelText

    files = locate(model.uri, model.revision)
    open_checkpoint(files)
    ModelText.load(files)
