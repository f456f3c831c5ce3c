"""The parts of a response's output during generation: messages, reasoning, calls; with events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from parallax_api_responses.custom_input import CustomInput
from parallax_api_responses.input_models import PartStatus
from parallax_api_responses.plan import ToolOrigin
from parallax_api_responses.reasoning_code import encode_text
from parallax_core.api import Content, Piece, Reasoning, ToolCall
from parallax_core.api.bodies import JsonObject


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

    def begin(self) -> Iterator[JsonObject]:
        """Yield the events after ``response.output_item.added``."""
        return iter(())

    def add(self, text: str, logprobs: list[msgspec.Raw]) -> Iterator[JsonObject]:
        """Add a text and yield its event."""
        self.texts.append(text)
        self.logprobs += logprobs
        yield self.write_delta(text, logprobs)

    def end(self) -> Iterator[JsonObject]:
        """Yield the events before ``response.output_item.done``."""
        raise NotImplementedError

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """Return the part; ``is_empty``: as it begins."""
        raise NotImplementedError

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
        """Return the event for a text."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Its text so far."""
        return "".join(self.texts)

    @property
    def place(self) -> JsonObject:
        """The fields by which events name the part."""
        return {"item_id": self.id, "output_index": self.index}


@dataclass(slots=True, kw_only=True)
class OutputMessage(OutputPart):
    """A text for the reader."""

    kind: type[Piece] = Content

    def begin(self) -> Iterator[JsonObject]:
        """See `OutputPart.begin`."""
        yield {"type": "response.content_part.added", **self._content_place, "part": _write_text("", [])}

    def end(self) -> Iterator[JsonObject]:
        """See `OutputPart.end`."""
        done = {"text": self.text, "logprobs": self.logprobs}
        yield {"type": "response.output_text.done", **self._content_place, **done}
        part = _write_text(self.text, self.logprobs)
        yield {"type": "response.content_part.done", **self._content_place, "part": part}

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """See `OutputPart.write`."""
        content = [] if is_empty else [_write_text(self.text, self.logprobs)]
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
        """See `OutputPart.write_delta`."""
        return {"type": "response.output_text.delta", **self._content_place, "delta": text, "logprobs": logprobs}

    @property
    def _content_place(self) -> JsonObject:
        return {**self.place, "content_index": 0}


@dataclass(slots=True, kw_only=True)
class OutputReasoning(OutputPart):
    """The reasoning, sent as it is."""

    kind: type[Piece] = Reasoning
    encrypts: bool = False
    """Send it as ``encrypted_content``, too."""

    def begin(self) -> Iterator[JsonObject]:
        """See `OutputPart.begin`."""
        yield {"type": "response.content_part.added", **self._content_place, "part": self._write_content("")}

    def end(self) -> Iterator[JsonObject]:
        """See `OutputPart.end`."""
        yield {"type": "response.reasoning_text.done", **self._content_place, "text": self.text}
        yield {"type": "response.content_part.done", **self._content_place, "part": self._write_content(self.text)}

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """See `OutputPart.write`."""
        content = [] if is_empty else [self._write_content(self.text)]
        return {**self._write_common(status, is_empty=is_empty), "summary": [], "content": content}

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
        """See `OutputPart.write_delta`."""
        del logprobs
        return {"type": "response.reasoning_text.delta", **self._content_place, "delta": text}

    def _write_common(self, status: PartStatus, *, is_empty: bool) -> JsonObject:
        common: JsonObject = {"type": "reasoning", "id": self.id, "status": status}
        return {**common, "encrypted_content": encode_text(self.text)} if self.encrypts and not is_empty else common

    @staticmethod
    def _write_content(text: str) -> JsonObject:
        return {"type": "reasoning_text", "text": text}

    @property
    def _content_place(self) -> JsonObject:
        return {**self.place, "content_index": 0}


@dataclass(slots=True, kw_only=True)
class OutputSummary(OutputReasoning):
    """The reasoning, sent as its summary."""

    def begin(self) -> Iterator[JsonObject]:
        """See `OutputPart.begin`."""
        yield {"type": "response.reasoning_summary_part.added", **self._summary_place, "part": _write_summary("")}

    def end(self) -> Iterator[JsonObject]:
        """See `OutputPart.end`."""
        yield {"type": "response.reasoning_summary_text.done", **self._summary_place, "text": self.text}
        part = _write_summary(self.text)
        yield {"type": "response.reasoning_summary_part.done", **self._summary_place, "part": part}

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """See `OutputPart.write`."""
        summary = [] if is_empty else [_write_summary(self.text)]
        return {**self._write_common(status, is_empty=is_empty), "summary": summary}

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
        """See `OutputPart.write_delta`."""
        del logprobs
        return {"type": "response.reasoning_summary_text.delta", **self._summary_place, "delta": text}

    @property
    def _summary_place(self) -> JsonObject:
        return {**self.place, "summary_index": 0}


@dataclass(slots=True, kw_only=True)
class OutputCall(OutputPart):
    """A call of a function."""

    kind: type[Piece] = ToolCall
    call_id: str
    origin: ToolOrigin

    def end(self) -> Iterator[JsonObject]:
        """See `OutputPart.end`."""
        yield {"type": "response.function_call_arguments.done", **self.place, "arguments": self.text}

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """See `OutputPart.write`."""
        arguments = {"arguments": "" if is_empty else self.text}
        return {"type": "function_call", "id": self.id, "status": status, **self._write_call(), **arguments}

    def write_delta(self, text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
        """See `OutputPart.write_delta`."""
        del logprobs
        return {"type": "response.function_call_arguments.delta", **self.place, "delta": text}

    def _write_call(self) -> JsonObject:
        call: JsonObject = {"call_id": self.call_id, "name": self.origin.name}
        return {**call, "namespace": self.origin.namespace} if self.origin.namespace else call


@dataclass(slots=True, kw_only=True)
class OutputCustomCall(OutputCall):
    """A call of a custom tool."""

    decoder: CustomInput = field(default_factory=CustomInput)

    def add(self, text: str, logprobs: list[msgspec.Raw]) -> Iterator[JsonObject]:
        """See `OutputPart.add`; ``text`` is a piece of the arguments."""
        del logprobs
        yield from self._add_input(self.decoder.feed(text))

    def end(self) -> Iterator[JsonObject]:
        """See `OutputPart.end`."""
        yield from self._add_input(self.decoder.finish())
        yield {"type": "response.custom_tool_call_input.done", **self.place, "input": self.text}

    def write(self, status: PartStatus, *, is_empty: bool = False) -> JsonObject:
        """See `OutputPart.write`."""
        given = {"input": "" if is_empty else self.text}
        return {"type": "custom_tool_call", "id": self.id, "status": status, **self._write_call(), **given}

    def _add_input(self, text: str) -> Iterator[JsonObject]:
        if text:
            self.texts.append(text)
            yield {"type": "response.custom_tool_call_input.delta", **self.place, "delta": text}


def _write_text(text: str, logprobs: list[msgspec.Raw]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _write_summary(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}
