"""Holds the text side of a model: its tokenizer, chat template, default settings and stop tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.base.files import read_object
from parallax_core.contracts.grammar import ModelGrammars
from parallax_core.models.chat_template import ANSWER, ChatTemplate, PromptEnding, Tools, Turns, read_sources
from parallax_core.models.generation_config import AUTO, read_generation
from parallax_core.models.grammars import find_library
from parallax_core.models.pooling import EmbeddingConfig, read_embedding_config
from parallax_core.models.tokenizer_conversion import find_tokenizer_file
from parallax_core.models.tokenizer_files import load_tokenizer, read_special_tokens, read_tokenizer_settings
from parallax_core.models.vocabulary import Vocabulary

MOST_CHARACTERS = 2**26
"""The longest text that is tokenized, in characters."""


class ModelTokenizer:
    """Turns conversations into token ids, and token ids into text.

    Args:
        folder: of the model.
        generation: the source of the defaults for requests; see `read_generation`.

    Raises:
        ParallaxError: if the folder's tokenizer or one of its JSON files cannot be read.
    """

    def __init__(self, folder: Path, generation: str = AUTO) -> None:
        self._folder = folder
        settings = read_tokenizer_settings(folder)
        self._file = find_tokenizer_file(folder, settings)
        self._tokenizer = load_tokenizer(self._file, settings)
        self.vocabulary = Vocabulary(self._tokenizer)
        config = read_object(folder / "config.json")
        found = read_generation(folder, generation)
        self.generation, self.defaults = generation, found.defaults
        size = config.get("vocab_size")
        self.vocab_size = size if isinstance(size, int) else self.vocabulary.size
        self.context_length = _context_length(config)
        """The longest sequence the model was made for, in tokens; 0: not stated."""
        sources = read_sources(folder, settings)
        self._template_source, self._tool_source = sources.get("default"), sources.get("tool_use")
        self._special = read_special_tokens(settings)
        self.stop_ids = _stop_ids(found.eos_token_id, config) | self._known_ids([self._special.get("eos_token", "")])

    @cached_property
    def grammars(self) -> ModelGrammars:
        """What compiles grammars of answers."""
        size = max(self.vocab_size, self.vocabulary.size)
        return find_library().open_model(self._file, size, self.stop_ids)

    def encode_chat(
        self,
        turns: Turns,
        settings: Mapping[str, Any] | None = None,
        ending: PromptEnding = ANSWER,
        *,
        tools: Tools = (),
        special: bool = False,
    ) -> tuple[int, ...]:
        """Render a conversation with the model's chat template, and tokenize the result.

        Args:
            turns: the conversation.
            settings: further variables for the template.
            ending: how the prompt ends.
            tools: the tools that the model may call, in OpenAI's form.
            special: as in `encode`; most templates write the special tokens themselves.

        Raises:
            InvalidRequest: if the model has no chat template, the template has no tools or refuses the conversation, or
                the prompt is longer than the model's context.
            ParallaxError: if the template is damaged.
        """
        template = (self._tool_template or self._template) if tools else self._template
        if template is None:
            message = "this model has no chat template"
            raise InvalidRequest(message, "messages", "use a model made for chat, such as one named Instruct")
        return self.encode(template.render(turns, settings, ending, tools), "messages", special=special)

    def encode(self, text: str, param: str = "prompt", *, special: bool = True) -> tuple[int, ...]:
        """Tokenize the text of a request's field.

        It releases the interpreter lock, which ``Tokenizer.encode`` does not.

        Args:
            text: the text to tokenize.
            param: the name of the field, for errors.
            special: add the special tokens that the model expects around a text.

        Raises:
            InvalidRequest: if the text is longer than any that fits the model's context, or the tokenizer fails on it.
        """
        if len(text) > self._max_characters:
            message = f"{len(text)} characters in '{param}' are more than this model's context can hold"
            raise InvalidRequest(message, param, "shorten the text")
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # raised for a Rust panic; it cannot be imported
                raise
            message = f"the model's tokenizer fails on this text: {error}"
            raise InvalidRequest(message, param) from error
        return tuple(encoding.ids)

    @property
    def template_source(self) -> str:
        """The chat template, with the separate one for tools if there is one; empty: none."""
        return (self._template_source or "") + (self._tool_source or "")

    def template_uses(self, name: str) -> bool:
        """Return whether a variable of that name may occur in the chat template."""
        return self._template is not None and self._template.uses(name)

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template for conversations with tools has them."""
        template = self._tool_template or self._template
        return template is not None and template.uses("tools")

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._template_source is not None

    def compile_template(self) -> None:
        """Compile the chat template, if there is one, before the first conversation.

        Raises:
            ParallaxError: if the template is damaged.
        """
        _ = self._template, self._tool_template

    @cached_property
    def embedding_config(self) -> EmbeddingConfig:
        """How the model makes embeddings.

        Raises:
            InvalidRequest: if it makes none, or in a way that is not supported.
            ParallaxError: if its configuration is damaged.
        """
        return read_embedding_config(self._folder)

    @cached_property
    def can_embed(self) -> bool:
        """Whether the model makes embeddings in a supported way."""
        try:
            return bool(self.embedding_config)
        except ParallaxError:
            return False

    def decode(self, tokens: Sequence[int], *, shown: frozenset[int] = frozenset()) -> str:
        """Return the text of ``tokens`` without special tokens, except those in ``shown``."""
        if not shown:
            return self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        hidden = self._special_ids - shown
        return self._tokenizer.decode([each for each in tokens if each not in hidden], skip_special_tokens=False)

    def find_special(self, names: Collection[str]) -> frozenset[int]:
        """Return the ids of those of ``names`` that are special tokens of this model."""
        return self._known_ids(names) & self._special_ids

    def show(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, special tokens included."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        """The compiled template; compiled only when needed, since it is untrusted code."""
        return self._compile(self._template_source)

    @cached_property
    def _tool_template(self) -> ChatTemplate | None:
        """The compiled template for conversations with tools, of a model that has a separate one."""
        return self._compile(self._tool_source)

    def _compile(self, source: str | None) -> ChatTemplate | None:
        return None if source is None else ChatTemplate(source, self._special, self._max_characters)

    @cached_property
    def _max_characters(self) -> int:
        """The characters of the longest text that may fit the context: as many of the longest token as fit."""
        longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        return min(self.context_length * longest, MOST_CHARACTERS) if self.context_length else MOST_CHARACTERS

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        """The tokens that give no text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    def _known_ids(self, tokens: Collection[str]) -> frozenset[int]:
        ids = (self._tokenizer.token_to_id(token) for token in tokens if token)
        return frozenset(token for token in ids if token is not None)


def _context_length(config: Mapping[str, Any]) -> int:
    context = config.get("max_position_embeddings")
    return context if isinstance(context, int) else 0


def _stop_ids(stated: object, config: Mapping[str, Any]) -> frozenset[int]:
    ids = config.get("eos_token_id") if stated is None else stated
    return frozenset(each for each in (ids if isinstance(ids, list) else [ids]) if isinstance(each, int))
