"""The text side of one model, as the gateway uses it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from octavo_api.errors import InvalidRequest
from octavo_api.startup.model_source import Format, ModelFiles
from octavo_text.chat_template import ChatTemplate
from octavo_text.description import SamplingDefaults, TextDescription
from octavo_text.detokenizer import Detokenizer
from octavo_text.document_cache import cache_folder
from octavo_text.from_folder import describe_folder
from octavo_text.from_gguf import describe_gguf
from octavo_text.vocabulary import read_vocabulary

# A hop to the pool and back costs 60 to 130 µs, as much as encoding this many characters.
_INLINE_CHARS = 384
_INLINE_MESSAGES = 8
_THREADS = min(4, os.cpu_count() or 1)


class ModelText:
    """Conversion between text and tokens for one model.

    Use it from one event loop; encoding of long texts leaves it free.

    Text of control tokens (``<|im_end|>``) is read as these tokens at any place, also in a user's message. This is
    the same in vLLM and ``transformers``.
    """

    def __init__(self, description: TextDescription) -> None:
        self.bos_token_id = description.bos_token_id
        self.eos_token_ids = description.eos_token_ids
        self.vocab_size = description.vocab_size
        self.max_position_embeddings = description.max_position_embeddings
        self.sampling_defaults: SamplingDefaults = description.sampling_defaults
        self._tokenizer = description.tokenizer
        self._vocabulary = read_vocabulary(description.tokenizer, description.vocab_size)
        templates = description.chat_templates
        self._chat = ChatTemplate(templates, description.special_tokens) if templates else None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-text")

    @classmethod
    def load(cls, files: ModelFiles, *, cache: Path | None = None) -> Self:
        """Read a model's tokenizer, templates and defaults, but no weights.

        ``cache`` is the folder for tokenizers converted from GGUF, by default in the user's cache folder. Raise
        ``ModelError`` that names the file and the problem.
        """
        if files.format is Format.GGUF:
            return cls(describe_gguf(files.path, cache or cache_folder()))
        return cls(describe_folder(files.path))

    @property
    def has_chat_template(self) -> bool:
        return self._chat is not None

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``, by default with the model's own BOS or EOS around it.

        Raise ``InvalidRequest`` for text that is not Unicode (a lone surrogate).
        """
        if len(text) <= _INLINE_CHARS:
            return self._encode(text, add_special_tokens, "prompt")
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, self._encode, text, add_special_tokens, "prompt"
        )

    def encode_now(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the result of ``encode`` without an event loop."""
        return self._encode(text, add_special_tokens, "prompt")

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation. Only the template writes special tokens, so there is one BOS.

        Raise ``InvalidRequest`` if the model has no chat template, a message has a wrong shape, or the template
        rejects the messages.
        """
        if self._chat is None:
            raise InvalidRequest("messages: this model has no chat template; use /v1/completions", param="messages")
        arguments = (self._chat, messages, add_generation_prompt, template_kwargs)
        if _short(messages) and not template_kwargs:
            return self._encode_chat(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._encode_chat, *arguments)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``. Raise ``InvalidRequest`` for an id outside of the vocabulary."""
        for token in ids:
            if not 0 <= token < self._vocabulary.size:
                raise InvalidRequest.field("tokens", token, f"ids from 0 to {self._vocabulary.size - 1}")
        detokenizer = self.detokenizer((), skip_special_tokens=skip_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return the detokenizer of one choice that follows ``prompt_ids``."""
        return Detokenizer(self._vocabulary, prompt_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return one token as text, with U+FFFD for bytes that are no character alone."""
        return self._vocabulary.pieces[token_id].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._vocabulary.pieces[token_id]

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        # Of tokenizers' encoders only the batch ones release the GIL.
        try:
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError:  # the error of tokenizers for text that has no UTF-8
            raise InvalidRequest(f"{param}: got a lone surrogate, allowed: Unicode text", param=param) from None

    def _encode_chat(
        self,
        chat: ChatTemplate,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None,
    ) -> list[int]:
        text = chat.render(messages, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs)
        return self._encode(text, False, "messages")


def _short(messages: object) -> bool:
    """Return True if a conversation, not checked yet, renders and encodes within the time of a hop."""
    if not isinstance(messages, list) or len(messages) > _INLINE_MESSAGES:
        return False
    values = [value for message in messages if isinstance(message, Mapping) for value in message.values()]
    return all(isinstance(value, str) for value in values) and sum(map(len, values)) <= _INLINE_CHARS
