"""``transformers`` renders the same templates; ours must not differ by a character."""

from datetime import datetime
from typing import Any

import pytest

from octavo_api.errors import InvalidRequest, ModelError
from octavo_text.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}
{% else %}
{% set loop_messages = messages %}
{% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if loop.index0 == 0 and system_message %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}
{% set content = message['content'] %}
{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ ' ' + content.strip() + ' ' + eos_token }}
{% endif %}
{% endfor %}
"""
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Tools:\\n" }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
GEMMA = """{{ bos_token }}
{%- set ns = namespace(first=true, n=0) -%}
{%- for message in messages -%}
    {%- if message['role'] == 'ignored' -%}{%- continue -%}{%- endif -%}
    {%- set role = "model" if message['role'] == "assistant" else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {% set ns.n = ns.n + 1 %}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
"""
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
)
INDENTED = """{% for m in messages %}
    {% if m.role == 'user' %}
  {{ m.content }}
    {% endif %}
{% endfor %}
"""
FIELDS = "{% for m in messages %}{{ m | tojson }}{% if m.tool_calls is defined %}calls{% endif %}{% endfor %}"
PARTS_ONLY = (
    "{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'text' %}[{{ part.text }}]{% endif %}{% endfor %}{% endfor %}"
)

TEMPLATES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama31": LLAMA31,
    "gemma": GEMMA,
    "marked": MARKED,
    "indented": INDENTED,
    "fields": FIELDS,
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hello <b>&amp; 'you'</b> {{ 1 + 1 }} {% raw %}"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "\n hi \n"}],
    "turns": [
        {"role": "user", "content": "日本語 👨‍👩‍👧"},
        {"role": "assistant", "content": "yes", "tool_calls": None},
        {"role": "user", "content": ""},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "f<é>", "parameters": {"b": 1, "a": [None, True]}}}]


def theirs(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    return str(tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **kwargs))


def ours(template: str, messages: Any, **kwargs: Any) -> str:
    add_generation_prompt = kwargs.pop("add_generation_prompt", True)
    chat = ChatTemplate({"default": template}, SPECIAL)
    return chat.render(messages, add_generation_prompt=add_generation_prompt, template_kwargs=kwargs)


@pytest.mark.model
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_renders_what_transformers_renders(template, conversation, add_generation_prompt) -> None:
    messages = CONVERSATIONS[conversation]
    expected = theirs(TEMPLATES[template], messages, add_generation_prompt=add_generation_prompt)
    assert ours(TEMPLATES[template], messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.model
def test_tools_and_other_arguments_reach_the_template() -> None:
    messages = CONVERSATIONS["one"]
    expected = theirs(LLAMA31, messages, add_generation_prompt=True, tools=TOOLS, date_string="today")
    assert ours(LLAMA31, messages, tools=TOOLS, date_string="today") == expected
    assert "f<é>" in expected
    assert "Today Date: today" in expected


def test_tools_choose_the_template_made_for_them() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})
    messages = CONVERSATIONS["one"]
    assert chat.render(messages) == "plain"
    assert chat.render(messages, template_kwargs={"tools": TOOLS}) == "with tools"
    assert chat.render(messages, template_kwargs={"tools": []}) == "plain"


def test_the_time_is_passed_in() -> None:
    chat = ChatTemplate({"default": "{{ strftime_now('%Y-%m-%d') }}"}, {}, now=lambda: datetime(2031, 5, 17))
    assert chat.render(CONVERSATIONS["one"]) == "2031-05-17"


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]


@pytest.mark.parametrize(
    "template", [CHATML, LLAMA31, "{{ messages[0].content }}", "{{ messages[0].content | tojson }}"]
)
def test_parts_become_lines_where_a_template_takes_strings(template) -> None:
    assert ours(template, PARTS) == ours(template, [{"role": "user", "content": "one\ntwo"}])


@pytest.mark.model
@pytest.mark.parametrize("template", [GEMMA, PARTS_ONLY])
def test_parts_stay_parts_where_a_template_takes_them(template) -> None:
    assert ours(template, PARTS) == theirs(template, PARTS, add_generation_prompt=True)


def test_strings_become_parts_where_a_template_takes_nothing_else() -> None:
    assert ours(PARTS_ONLY, CONVERSATIONS["system"]) == "[ Be brief. ][\n hi \n]"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only one turn') }}", "only one turn"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ messages[0]['content'] + 1 }}", "can only concatenate str"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ namespace(__class__=1) }}", "underscore"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ messages | tojson(indent=raise_exception) }}", ""),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_what_a_template_raises_is_the_requests_error(template, says) -> None:
    with pytest.raises(InvalidRequest, match=r"messages: the model's chat template refuses them: .") as error:
        ours(template, CONVERSATIONS["one"])
    assert error.value.param == "messages"
    assert says in error.value.message


def test_a_template_that_refuses_once_serves_the_next() -> None:
    chat = ChatTemplate({"default": LLAMA2}, SPECIAL)
    with pytest.raises(InvalidRequest, match="must alternate"):
        chat.render([{"role": "assistant", "content": "x"}])
    assert chat.render(CONVERSATIONS["one"]).startswith("<s>[INST] Hello")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages: got [], allowed: a list of at least one message"),
        ("hi", "messages: got 'hi', allowed: a list of at least one message"),
        (["hi"], "messages[0]: got 'hi', allowed: an object with role and content"),
        ([{"content": "x"}], "messages[0].role: got None, allowed: a string"),
        ([{"role": 7, "content": "x"}], "messages[0].role: got 7, allowed: a string"),
        ([{"role": "user", "content": 7}], "messages[0].content: got 7, allowed: a string or a list of text parts"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]: got 'x', allowed: "),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type: got 'image_url', allowed: text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text: got None, allowed: a string"),
    ],
)
def test_says_what_is_wrong_with_a_message(messages, says) -> None:
    with pytest.raises(InvalidRequest) as error:
        ours(CHATML, messages)
    assert error.value.message.startswith(says)


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt"])
def test_arguments_cannot_replace_the_conversation(name) -> None:
    chat = ChatTemplate({"default": CHATML}, SPECIAL)
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs: got '{name}'"):
        chat.render(CONVERSATIONS["one"], template_kwargs={name: []})


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}]
    ours(CHATML, messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}]


def test_template_that_does_not_compile_is_the_models_error() -> None:
    with pytest.raises(ModelError, match=r"chat template default: line 2: "):
        ChatTemplate({"default": "ok\n{% if %}"}, {})
