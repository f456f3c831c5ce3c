"""Output parsers, which find reasoning and tool calls in the text of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from parallax_core.base.refs import Ref


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The model's reasoning, which is not part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A piece of a tool call: the first piece has the whole name and no arguments, later ones have only arguments."""

    index: int
    """The number of the call in the answer, counted from 0."""
    name: str = ""
    arguments: str = ""
    """A piece of JSON text; the pieces of one index concatenated are the arguments."""
    id: str = ""
    """On the first piece: the id that the model gave the call; empty: it gave none."""


Piece = Content | Reasoning | ToolCall


class Parser(Protocol):
    """Parses one answer as it is generated.

    However the text is split, the result is the same once adjacent pieces of one kind are joined. No text is lost
    except the markers themselves; text that looks like a marker and turns out not to be one is content.
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """Add text and return the pieces that are certain by now. Takes time in ``text``, not in all text so far."""

    def finish(self) -> Sequence[Piece]:
        """Return the pieces held back, at the end of the answer. A second call returns nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerInfo:
    """The facts about an answer that its parser may need."""

    prompt_end: str = ""
    """The last characters of the prompt, at most 256, special tokens included. Some chat templates open the reasoning
    in the prompt."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """The tools that the model may call: by name, the JSON Schema of the arguments as JSON text. Empty: text that looks
    like a call is content."""
    calls_come_first: bool = False
    """Whether there is no text before calls: an answer that begins with anything else, after the reasoning, calls no
    tool, whatever is in it."""


@runtime_checkable
class Informed(Protocol):
    """An optional protocol of a `Parser` that needs to know about its answer."""

    def begin(self, answer: AnswerInfo) -> None:
        """Take note of ``answer``; called once, before any text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedAnswers:
    """The allowed answers to a request, from which the grammar is written."""

    tools: Mapping[str, str]
    """The tools that it may call: by name, the JSON Schema that the arguments have to follow, as JSON text. References
    in it are pointers from its root."""
    most_calls: int
    """The most calls of an answer."""
    must_call: bool = False
    """Whether it has to call a tool."""
    answer: str = ""
    """The rule in Lark, named ``answer``, of a text that calls no tool; empty: any text may come before calls, or in
    their place."""
    find_special: Callable[[str], str]
    """Returns the name in Lark of the special token that a text stands for; empty if it stands for none."""


@runtime_checkable
class GrammarWriter(Protocol):
    """An optional protocol of a `Parser` that knows the grammar of its format.

    Requests may then have strict tools, or tools and an output schema.
    """

    def write_grammar(self, allowed: AllowedAnswers) -> str:
        """Return the grammar of an answer in llguidance's dialect of Lark, after whose calls there is nothing more.

        Called after `Informed.begin`. The reasoning belongs to the answer if any text does, or the answer proper cannot
        be JSON alone; else it is over.

        Raises:
            InvalidRequest: if the arguments of a tool cannot be held to its schema in this format; ``param`` is the
                name of the tool.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class CallForm:
    """How a model writes its calls, if each is a JSON object with ``name`` and the arguments.

    Each string is a mark, and white space may stand between them. One that is a single special token of the model
    stands for that token.
    """

    begin: str = ""
    """The mark before the calls. Empty: an answer with calls begins with them."""
    opening: tuple[str, ...] = ()
    """The marks between ``begin`` and the first call."""
    between: tuple[str, ...]
    """The marks between two calls."""
    end: tuple[str, ...] = ()
    """The marks after the last call."""
    arguments: str = "arguments"
    """The key of the arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParserSpec:
    """Offers a parser of outputs."""

    name: str
    """The name by which users select it."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[], Parser]]
    """Makes a parser for one answer."""
    remedy: str = ""
    """What to do if the factory cannot be imported, such as the package to install."""
    finds_calls: bool = True
    """Whether it finds tool calls; without, the server asks for calls in a form of its own and reads them itself."""
    template_marks: tuple[str, ...] = ()
    """Strings that a chat template contains, all of them, if its model writes this format. Of several parsers whose
    strings occur, the one with the most is chosen. Empty: it is chosen by name only."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens that mark reasoning or calls. Text is made without special tokens, except these."""
    reasoning_end: str = ""
    """The text that ends the reasoning, for requests that limit it; empty: reasoning cannot be limited."""
    reasoning_marks: tuple[str, str] | None = None
    """The marks before and after the reasoning: a prompt that ends with the first has opened it. Stop strings do not
    count between them. None: the reasoning, if there is any, has no marks, and ``tool_choice`` cannot force a call."""
    may_force_calls: bool = True
    """Whether the answer proper may be JSON alone, which is how ``tool_choice`` forces a call. If not, only a
    `GrammarWriter` can force one."""
    call_form: CallForm | None = None
    """How the model writes calls, so that a grammar can hold their arguments to a strict schema, without a
    `GrammarWriter`; None: it cannot."""
