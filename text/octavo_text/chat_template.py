"""A conversation as one text, by the model's own Jinja template.

The environment is the same as in ``transformers``, so that the same template renders the same text. Templates come with
a model and are not trusted. They run in a sandbox and see plain data only.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo_api.errors import InvalidRequest, ModelError

Message = Mapping[str, Any]

_RESERVED = ("messages", "add_generation_prompt")
_PROBE = "octavo-probe"


class ChatTemplate:
    """The templates of one model.

    ``sources`` maps names to Jinja text: ``default``, and ``tool_use`` if the model has one for requests with
    tools. ``special_tokens`` (``bos_token``, ``eos_token``, …) are the variables that templates may write. Raise
    ``ModelError`` if a template does not compile.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = _environment(now)
        self._special_tokens = dict(special_tokens)
        self._templates = {name: _compile(environment, name, source) for name, source in sources.items()}
        default = self._template({})
        self._takes_text = _PROBE in self._probe(default, _PROBE)
        rendered = self._probe(default, [{"type": "text", "text": _PROBE}])
        # A template made for strings shows a list as Python or JSON write it, in quotes.
        quoted = f"'{_PROBE}'" in rendered or f'"{_PROBE}"' in rendered
        self._takes_parts = _PROBE in rendered and not quoted

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation.

        Raise ``InvalidRequest`` if a message has a wrong shape, or if the template rejects the messages.
        """
        kwargs = dict(template_kwargs or {})
        for name in _RESERVED:
            if name in kwargs:
                raise InvalidRequest.field("chat_template_kwargs", name, f"any name but {', '.join(_RESERVED)}")
        chat = [self._message(message, f"messages[{index}]") for index, message in enumerate(_messages(messages))]
        return self._render(self._template(kwargs), chat, add_generation_prompt, kwargs)

    def _template(self, kwargs: Mapping[str, Any]) -> jinja2.Template:
        if kwargs.get("tools") and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates["default"]

    def _render(
        self, template: jinja2.Template, chat: Sequence[Message], add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        variables = {"tools": None, "documents": None, **self._special_tokens, **kwargs}
        try:
            return template.render({**variables, "messages": chat, "add_generation_prompt": add_generation_prompt})
        except Exception as error:
            # These messages cause every error of a template, from its own raise_exception to a TypeError on an
            # unexpected field.
            reason = str(error) or type(error).__name__
            raise InvalidRequest(
                f"messages: the model's chat template refuses them: {reason}", param="messages"
            ) from None

    def _message(self, message: object, where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise InvalidRequest.field(where, message, "an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest.field(f"{where}.role", role, "a string")
        # Clients send null for unused fields; many templates would write "None".
        given = {key: value for key, value in message.items() if value is not None}
        if "content" in given:
            given["content"] = self._content(given["content"], f"{where}.content")
        return given

    def _content(self, content: object, where: str) -> str | list[dict[str, str]]:
        """Return content in the form that the template takes. Parts become lines if it takes strings only."""
        if isinstance(content, str):
            return content if self._takes_text or not self._takes_parts else [_part(content)]
        if not isinstance(content, list):
            raise InvalidRequest.field(where, content, "a string or a list of text parts")
        texts = [_text(part, f"{where}[{index}]") for index, part in enumerate(content)]
        return [_part(text) for text in texts] if self._takes_parts else "\n".join(texts)

    def _probe(self, template: jinja2.Template, content: Any) -> str:
        try:
            return self._render(template, [{"role": "user", "content": content}], False, {})
        except InvalidRequest:
            return ""


def _messages(messages: object) -> Sequence[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidRequest.field("messages", messages, "a list of at least one message")
    return messages


def _text(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest.field(where, part, '{"type": "text", "text": …}')
    if part.get("type") != "text":
        raise InvalidRequest.field(f"{where}.type", part.get("type"), "text")
    if not isinstance(text := part.get("text"), str):
        raise InvalidRequest.field(f"{where}.text", text, "a string")
    return text


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _compile(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"chat template {name}: line {error.lineno}: {error.message}") from None


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    environment.globals["namespace"] = _Namespace
    return environment


class _Generation(Extension):
    """Tag ``{% generation %}``, which marks the assistant's text for training. Here its body is only rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class _Namespace(Namespace):
    """Namespace that rejects names with a leading underscore.

    A template could reach Python's internals through them.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _checked(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(_checked(name), value)


def _checked(name: str) -> str:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace: {name!r} starts with an underscore")
    return name


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Format JSON without the escapes for HTML of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
