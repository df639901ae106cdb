"""Conversion of text to tokens and back: tokenizer, chat template, detokenizer, stop strings.

No torch, no transformers.
"""

from octavo_text.detokenizer import Detokenizer
from octavo_text.model_text import ModelText
from octavo_text.stop_strings import MAX_STOP_CHARS, MAX_STOPS, StopStrings, check_stops

__all__ = ["MAX_STOPS", "MAX_STOP_CHARS", "Detokenizer", "ModelText", "StopStrings", "check_stops"]
