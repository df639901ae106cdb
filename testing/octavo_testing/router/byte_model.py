"""A byte-level model of 260 tokens, without weights."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo_api.startup.model_source import Format, ModelFiles

MODEL = "bytes"
EOS = 256
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


def write_byte_model(folder: Path) -> ModelFiles:
    """Write a model without weights: token b is byte b, 256 ends the text."""
    alphabet = _bytes_to_unicode()
    tokenizer = Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = {
        "config.json": {"vocab_size": 260, "max_position_embeddings": 4096, "eos_token_id": EOS},
        "tokenizer_config.json": {"eos_token": "<|end|>", "chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": EOS, "temperature": 0.5},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return ModelFiles(folder, Format.SAFETENSORS)


def _bytes_to_unicode() -> dict[int, str]:
    """Return GPT-2's printable character of each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + number) for number, byte in enumerate(others)}
