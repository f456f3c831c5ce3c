"""The text side of a model folder: tokenizer, chat template, and what ends an answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.base.files import read_object
from parallax_core.contracts.sample import Sampling
from parallax_core.node.vocabulary import Vocabulary

RESERVED = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
"""What a chat template is given in any case."""


class ModelText:
    """Turns conversations into token ids, and token ids into text.

    Raises:
        ParallaxError: if the folder's tokenizer or one of its JSON files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load_tokenizer(folder / "tokenizer.json")
        self.vocabulary = Vocabulary(self._tokenizer)
        config = read_object(folder / "config.json")
        settings = _read_optional(folder / "tokenizer_config.json")
        generation = _read_optional(folder / "generation_config.json")
        self._template = _load_template(folder, settings)
        self._special = {name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token")}
        size = config.get("vocab_size")
        self.vocab_size = size if isinstance(size, int) else self.vocabulary.size
        self._max_characters = _max_characters(self._tokenizer, config)
        self.stop_ids = _stop_ids(generation, config) | self._known_ids([self._special["eos_token"]])
        try:
            self.sampling = _default_sampling(generation)
        except (TypeError, ValueError) as error:
            message = f"{folder / 'generation_config.json'} holds a value of the wrong kind: {error}"
            raise ParallaxError(message, "fetch the model again") from error

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], settings: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """Render ``messages`` (``role`` and ``content``) with the model's chat template and tokenize the result.

        Args:
            messages: the conversation.
            settings: further variables for the template.

        Raises:
            InvalidRequest: if the model has no chat template, or the template refuses these messages.
        """
        settings = settings or {}
        if taken := sorted(RESERVED.intersection(settings)):
            message = f"{taken[0]!r} is the server's to set"
            raise InvalidRequest(message, "chat_template_kwargs", "leave it out")
        if self._template is None:
            message = "this model has no chat template"
            raise InvalidRequest(message, "messages", "use a model made for chat, such as one named Instruct")
        try:
            fixed = {"messages": messages, "add_generation_prompt": True, **self._special}
            prompt = self._template.render({**settings, **fixed})
        except Exception as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise InvalidRequest(message, "messages") from error
        return self._encode(prompt, "messages", special=False)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokenize plain text, with the special tokens the model wants around a text.

        Raises:
            InvalidRequest: if it is longer than any text the model can hold.
        """
        return self._encode(text, "prompt", special=True)

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``; special tokens have none."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def show(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, special tokens included."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def _encode(self, text: str, param: str, *, special: bool) -> tuple[int, ...]:
        if len(text) > self._max_characters:
            message = f"{len(text)} characters in '{param}' are more than this model's context can hold"
            raise InvalidRequest(message, param, "shorten the text")
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _known_ids(self, tokens: Sequence[str]) -> frozenset[int]:
        ids = (self._tokenizer.token_to_id(token) for token in tokens if token)
        return frozenset(token for token in ids if token is not None)


def _read_optional(path: Path) -> dict[str, Any]:
    """Not every model has every file."""
    return read_object(path) if path.exists() else {}


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        message = f"{path} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error


def _load_template(folder: Path, settings: Mapping[str, Any]) -> jinja2.Template | None:
    try:
        source = _read_template(folder / "chat_template.jinja", settings)
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        message = f"the chat template in {folder} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template in {folder} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again, or report it to its authors") from error


def _read_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    source = path.read_text(encoding="utf-8") if path.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    if not isinstance(source, str | None):
        message = f"it is a {type(source).__name__}"
        raise TypeError(message)
    return source


def _max_characters(tokenizer: Tokenizer, config: Mapping[str, Any]) -> int:
    """Return how many characters cannot but be too many: the context filled with the longest token."""
    context = config.get("max_position_embeddings")
    if not isinstance(context, int):
        return sys.maxsize
    return context * max(map(len, tokenizer.get_vocab()), default=1)


def _to_json(value: object, indent: int | None = None) -> str:
    """Unlike Jinja's own filter, escape nothing for HTML: prompts are not web pages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> NoReturn:
    raise jinja2.TemplateError(reason)


def _token_text(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _stop_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[int]:
    ids = generation.get("eos_token_id", config.get("eos_token_id"))
    return frozenset(each for each in (ids if isinstance(ids, list) else [ids]) if isinstance(each, int))


def _default_sampling(generation: Mapping[str, Any]) -> Sampling:
    """What the model's authors recommend where a request leaves a choice open; greedy is never a default."""
    return Sampling(
        temperature=float(generation.get("temperature") or 1.0),
        top_k=int(generation.get("top_k") or 0),
        top_p=float(generation.get("top_p") or 1.0),
    )
