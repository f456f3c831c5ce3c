"""The parts of a response's output during generation: messages, reasoning, calls; with events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import UNSET

from parallax_api_responses import replies
from parallax_api_responses.custom_input import CustomInput
from parallax_api_responses.input_models import PartStatus
from parallax_api_responses.plan import ToolOrigin
from parallax_api_responses.reasoning_code import encode_text
from parallax_core.api import Content, Piece, Reasoning, ToolCall


@dataclass(slots=True, kw_only=True)
class OutputPart:
    """A part of the output; the subclasses write its events and its fields."""

    id: str
    index: int
    """Its place in the output."""
    kind: type[Piece]
    """The pieces that it is made of."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[msgspec.Raw] = field(default_factory=list)
    """The JSON of the log-probability of each token; only of messages."""

    def begin(self) -> Iterator[replies.ResponseEvent]:
        """Yield the events after ``response.output_item.added``."""
        return iter(())

    def add(self, text: str, logprobs: list[msgspec.Raw]) -> Iterator[replies.ResponseEvent]:
        """Add a text and yield its event."""
        self.texts.append(text)
        self.logprobs += logprobs
        yield self.write_delta(text, logprobs)

    def end(self) -> Iterator[replies.ResponseEvent]:
        """Yield the events before ``response.output_item.done``."""
        raise NotImplementedError

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponsePart:
        """Return the part; ``is_empty``: as it begins."""
        raise NotImplementedError

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseEvent:
        """Return the event for a text."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Its text so far."""
        return "".join(self.texts)

    @property
    def place(self) -> tuple[str, int]:
        """The fields by which events name the part: its id and its index."""
        return self.id, self.index


@dataclass(slots=True, kw_only=True)
class OutputMessage(OutputPart):
    """A text for the reader."""

    kind: type[Piece] = Content

    def begin(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.begin`."""
        yield replies.ResponseContentEvent("response.content_part.added", *self.place, 0, _write_text("", []))

    def end(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.end`."""
        part = _write_text(self.text, self.logprobs)
        yield replies.ResponseTextDone("response.output_text.done", *self.place, 0, part.text, part.logprobs)
        yield replies.ResponseContentEvent("response.content_part.done", *self.place, 0, part)

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponseMessage:
        """See `OutputPart.write`."""
        content = [] if is_empty else [_write_text(self.text, self.logprobs)]
        return replies.ResponseMessage(id=self.id, status=status, content=content)

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseEvent:
        """See `OutputPart.write_delta`."""
        shown = cast("list[replies.TextLogprobs]", logprobs)
        return replies.ResponseTextDelta("response.output_text.delta", *self.place, 0, text, shown)


@dataclass(slots=True, kw_only=True)
class OutputReasoning(OutputPart):
    """The reasoning, sent as it is."""

    kind: type[Piece] = Reasoning
    encrypts: bool = False
    """Send it as ``encrypted_content``, too."""

    def begin(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.begin`."""
        yield replies.ResponseContentEvent(
            "response.content_part.added", *self.place, 0, replies.ResponseReasoningText("")
        )

    def end(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.end`."""
        part = replies.ResponseReasoningText(self.text)
        yield replies.ResponseReasoningDone("response.reasoning_text.done", *self.place, 0, part.text)
        yield replies.ResponseContentEvent("response.content_part.done", *self.place, 0, part)

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponseReasoning:
        """See `OutputPart.write`."""
        part = self._begin(status, is_empty=is_empty)
        part.content = [] if is_empty else [replies.ResponseReasoningText(self.text)]
        return part

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseEvent:
        """See `OutputPart.write_delta`."""
        del logprobs
        return replies.ResponseReasoningDelta("response.reasoning_text.delta", *self.place, 0, text)

    def _begin(self, status: PartStatus, *, is_empty: bool) -> replies.ResponseReasoning:
        encrypted = encode_text(self.text) if self.encrypts and not is_empty else UNSET
        return replies.ResponseReasoning(id=self.id, status=status, encrypted_content=encrypted)


@dataclass(slots=True, kw_only=True)
class OutputSummary(OutputReasoning):
    """The reasoning, sent as its summary."""

    def begin(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.begin`."""
        yield replies.ResponseSummaryPart(
            "response.reasoning_summary_part.added", *self.place, 0, replies.ResponseSummaryText("")
        )

    def end(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.end`."""
        part = replies.ResponseSummaryText(self.text)
        yield replies.ResponseSummaryDone("response.reasoning_summary_text.done", *self.place, 0, part.text)
        yield replies.ResponseSummaryPart("response.reasoning_summary_part.done", *self.place, 0, part)

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponseReasoning:
        """See `OutputPart.write`."""
        part = self._begin(status, is_empty=is_empty)
        part.summary = [] if is_empty else [replies.ResponseSummaryText(self.text)]
        return part

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseEvent:
        """See `OutputPart.write_delta`."""
        del logprobs
        return replies.ResponseSummaryDelta("response.reasoning_summary_text.delta", *self.place, 0, text)


@dataclass(slots=True, kw_only=True)
class OutputCall(OutputPart):
    """A call of a function."""

    kind: type[Piece] = ToolCall
    call_id: str
    origin: ToolOrigin

    def end(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.end`."""
        yield replies.ResponseArgumentsDone("response.function_call_arguments.done", *self.place, self.text)

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponsePart:
        """See `OutputPart.write`."""
        return replies.ResponseCall(
            id=self.id,
            status=status,
            call_id=self.call_id,
            name=self.origin.name,
            namespace=self.origin.namespace or UNSET,
            arguments="" if is_empty else self.text,
        )

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseEvent:
        """See `OutputPart.write_delta`."""
        del logprobs
        return replies.ResponseCallDelta("response.function_call_arguments.delta", *self.place, text)


@dataclass(slots=True, kw_only=True)
class OutputCustomCall(OutputCall):
    """A call of a custom tool."""

    decoder: CustomInput = field(default_factory=CustomInput)

    def add(self, text: str, logprobs: list[msgspec.Raw]) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.add`; ``text`` is a piece of the arguments."""
        del logprobs
        yield from self._add_input(self.decoder.feed(text))

    def end(self) -> Iterator[replies.ResponseEvent]:
        """See `OutputPart.end`."""
        yield from self._add_input(self.decoder.finish())
        yield replies.ResponseInputDone("response.custom_tool_call_input.done", *self.place, self.text)

    def write(self, status: PartStatus, *, is_empty: bool = False) -> replies.ResponsePart:
        """See `OutputPart.write`."""
        return replies.ResponseCustomCall(
            id=self.id,
            status=status,
            call_id=self.call_id,
            name=self.origin.name,
            namespace=self.origin.namespace or UNSET,
            input="" if is_empty else self.text,
        )

    def _add_input(self, text: str) -> Iterator[replies.ResponseEvent]:
        if text:
            self.texts.append(text)
            yield replies.ResponseCallDelta("response.custom_tool_call_input.delta", *self.place, text)


def _write_text(text: str, logprobs: list[msgspec.Raw]) -> replies.ResponseText:
    return replies.ResponseText(text=text, logprobs=cast("list[replies.TextLogprobs]", logprobs))
