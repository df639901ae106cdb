import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from octavo_api.errors import InvalidRequest, ModelError
from octavo_api.startup.model_source import Format, ModelFiles
from octavo_testing.text.corpus import HOSTILE
from octavo_testing.text.vocabularies import byte_level_values, train_byte_level
from octavo_text import ModelText

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder in Hugging Face's layout, without weights."""
    tokenizer: Tokenizer = train_byte_level(BYTE_LEVEL)
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    root = tmp_path / "model"
    root.mkdir()
    tokenizer.save(str(root / "tokenizer.json"))
    write(root, "config.json", vocab_size=640, max_position_embeddings=2048, eos_token_id=2)
    write(
        root,
        "tokenizer_config.json",
        bos_token="<s>",
        eos_token={"__type": "AddedToken", "content": "<|im_end|>"},
        chat_template=CHATML,
    )
    write(root, "generation_config.json", eos_token_id=[1, 2], temperature=0.6, top_p=0.9, top_k=-1, max_new_tokens=9)
    return root


def write(root: Path, name: str, **document: Any) -> None:
    (root / name).write_text(json.dumps(document))


def load(folder: Path) -> ModelText:
    return ModelText.load(ModelFiles(folder, Format.SAFETENSORS))


def test_reads_a_folder(folder: Path) -> None:
    text = load(folder)
    assert text.bos_token_id == 600
    assert text.eos_token_ids == {1, 2}
    assert text.vocab_size == 640
    assert text.max_position_embeddings == 2048
    assert text.has_chat_template
    assert dict(text.sampling_defaults) == {"temperature": 0.6, "top_p": 0.9, "top_k": 0}


def test_greedy_models_have_no_sampling_defaults(folder: Path) -> None:
    write(folder, "generation_config.json", do_sample=False, temperature=0.6, repetition_penalty=1.1)
    assert dict(load(folder).sampling_defaults) == {"repetition_penalty": 1.1}


def test_without_generation_config_the_config_says_where_to_end(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    text = load(folder)
    assert text.eos_token_ids == {1, 2}
    assert dict(text.sampling_defaults) == {}


def test_limits_of_a_nested_text_config(folder: Path) -> None:
    write(folder, "config.json", text_config={"vocab_size": 700, "max_position_embeddings": 99})
    text = load(folder)
    assert (text.vocab_size, text.max_position_embeddings) == (700, 99)


@pytest.mark.model
async def test_folder_encodes_as_transformers_does(folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    for pieces in (["$A"], ["<s>", "$A"], ["<s>", "$A", "<|im_end|>"]):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=pieces, special_tokens=[("<s>", 600), ("<|im_end|>", 1)]
        )
        tokenizer.enable_truncation(8)
        tokenizer.save(str(folder / "tokenizer.json"))
        theirs = PreTrainedTokenizerFast.from_pretrained(folder)
        ours = load(folder)
        for text in HOSTILE:
            assert await ours.encode(text) == theirs.encode(text), (pieces, text[:60])
            assert await ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
            messages = [{"role": "user", "content": text}]
            expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            assert await ours.encode_chat(messages) == expected


async def test_chat_has_one_bos(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 600)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", bos_token="<s>", chat_template="{{ bos_token }}{{ messages[0].content }}")
    text = load(folder)
    ids = await text.encode_chat([{"role": "user", "content": "hello"}])
    assert ids.count(600) == 1
    assert ids == await text.encode("hello")


async def test_control_tokens_in_a_message_are_control_tokens(folder: Path) -> None:
    """As vLLM and transformers do; what clients may not say must be kept out before."""
    ids = await load(folder).encode_chat([{"role": "user", "content": "<|im_end|>"}])
    assert ids.count(1) == 2


async def test_model_without_chat_template(folder: Path) -> None:
    write(folder, "tokenizer_config.json", bos_token="<s>")
    text = load(folder)
    assert not text.has_chat_template
    with pytest.raises(InvalidRequest, match="no chat template; use /v1/completions") as error:
        await text.encode_chat([{"role": "user", "content": "x"}])
    assert error.value.param == "messages"


async def test_chat_template_file_goes_before_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    text = load(folder)
    assert text.decode(await text.encode_chat([{"role": "user", "content": "x"}])) == "from the file"


async def test_named_chat_templates(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write(folder, "tokenizer_config.json", chat_template=named)
    text = load(folder)
    messages = [{"role": "user", "content": "x"}]
    assert text.decode(await text.encode_chat(messages)) == "plain"
    assert text.decode(await text.encode_chat(messages, template_kwargs={"tools": [{}]})) == "with tools"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", "{", "config.json: not readable JSON"),
        ("config.json", "[1]", "config.json: got a list, allowed: a JSON object"),
        ("config.json", "[" * 100_000, "config.json: not readable JSON"),
        ("config.json", '{"vocab_size": "many"}', "config.json: vocab_size: got 'many', allowed: an integer from 0"),
        ("tokenizer.json", "{}", "tokenizer.json: not a readable tokenizer"),
        ("tokenizer.json", "\x00\xff", "tokenizer.json: not a readable tokenizer"),
        ("tokenizer_config.json", "nope", "tokenizer_config.json: not readable JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "tokenizer_config.json: chat_template: allowed: a string"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "x", "template": "y"}]}', "one named default"),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}', "chat template default: line 1"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id: got 'x', allowed: an id or a list of ids"),
        (
            "generation_config.json",
            '{"temperature": 7}',
            "generation_config.json: temperature: got 7, allowed: a number",
        ),
        ("chat_template.jinja", "\xff\xfe", "chat_template.jinja: not readable"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: str, says: str) -> None:
    (folder / name).write_text(content, encoding="latin-1")
    with pytest.raises(ModelError) as error:
        load(folder)
    assert says in error.value.message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name}: no such file"):
        load(folder)


def test_reads_a_gguf_file(write_gguf, tmp_path: Path) -> None:
    values = byte_level_values(train_byte_level(BYTE_LEVEL), "gpt-2", bos_token_id=0, eos_token_id=1, eot_token_id=2)
    values |= {
        "llama.context_length": 512,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "tokenizer.chat_template": CHATML,
    }
    text = ModelText.load(ModelFiles(write_gguf(values), Format.GGUF), cache=tmp_path / "cache")
    assert (text.bos_token_id, text.eos_token_ids) == (0, {1, 2})
    assert (text.vocab_size, text.max_position_embeddings) == (600, 512)
    assert dict(text.sampling_defaults) == {"temperature": 0.5, "top_k": 40}
    assert text.has_chat_template


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, "tokenizer.ggml.pre: got 'klingon'"),
        ({"tokenizer.ggml.merges": ["x nothing"]}, "tokenizer.ggml: not a readable tokenizer"),
        ({"tokenizer.chat_template": "{% for %}"}, "chat template default: line 1"),
        ({"general.sampling.top_p": 7.0}, "general.sampling: top_p: got 7.0"),
    ],
)
def test_broken_gguf_is_named(change, says, write_gguf, tmp_path: Path) -> None:
    values = byte_level_values(train_byte_level(BYTE_LEVEL), "gpt-2") | change
    with pytest.raises(ModelError) as error:
        ModelText.load(ModelFiles(write_gguf(values), Format.GGUF), cache=tmp_path / "cache")
    assert says in error.value.message


async def test_text_that_is_not_unicode_is_the_requests_error(embedded: ModelText) -> None:
    for text in ("\ud800", "x" * 1000 + "\udfff"):
        with pytest.raises(InvalidRequest, match="prompt: got a lone surrogate"):
            await embedded.encode(text)
        with pytest.raises(InvalidRequest, match="messages: got a lone surrogate"):
            await embedded.encode_chat([{"role": "user", "content": text}])


async def test_long_texts_leave_the_loop_free(embedded: ModelText, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    during = []
    encode = embedded._encode

    def counted(*arguments: Any) -> list[int]:
        before = turns
        ids = encode(*arguments)
        during.append(turns - before)
        return ids

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(embedded, "_encode", counted)
    text = "All work and no play makes 1 dull boy. " * 10_000
    counting = asyncio.create_task(count())
    try:
        await embedded.encode(text)
        await embedded.encode_chat([{"role": "user", "content": text}])
    finally:
        counting.cancel()
    # A library that keeps the interpreter's lock would let the loop turn only until the next switch of threads.
    assert len(during) == 2
    assert min(during) > 2_000


async def test_inline_and_pooled_encoding_agree(embedded: ModelText) -> None:
    texts = [text * times for text in HOSTILE for times in (1, 40)]
    together = await asyncio.gather(*(embedded.encode(text) for text in texts))
    assert together == [embedded._tokenizer.encode(text).ids for text in texts]


async def test_a_cancelled_request_disturbs_no_other(embedded: ModelText) -> None:
    long = "word " * 20_000
    tasks = [asyncio.create_task(embedded.encode(long)) for _ in range(8)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
    assert {len(result) for result in done[1::2]} == {len(await embedded.encode(long))}


def test_the_text_side_loads_neither_torch_nor_transformers() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from octavo_text import ModelText; from octavo_api.startup.model_source import locate, EMBEDDED; "
        "ModelText.load(locate(EMBEDDED)); print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
