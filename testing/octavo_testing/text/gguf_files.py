"""GGUF files of metadata alone, written by the reference library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, GGUFWriter


def write_gguf(path: Path, values: Mapping[str, Any], architecture: str = "llama") -> Path:
    """Write a GGUF file without tensors; keys are given without ``tokenizer.``, values as Python has them."""
    writer = GGUFWriter(path, architecture)
    for key, value in values.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _ if value and all(isinstance(x, float) for x in value):
                writer.add_key_value(key, value, GGUFValueType.ARRAY, GGUFValueType.FLOAT32)
            case _:
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
