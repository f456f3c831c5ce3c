"""Writes a response and its events, in OpenAI's form, from the deltas of an answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from parallax_api_responses.input_models import PartStatus
from parallax_api_responses.output_parts import (
    OutputCall,
    OutputCustomCall,
    OutputMessage,
    OutputPart,
    OutputReasoning,
    OutputSummary,
)
from parallax_api_responses.plan import ResponsePlan, ToolOrigin
from parallax_core.api import Content, Delta, InvalidRequest, ParallaxError, Piece, Reasoning, ToolCall
from parallax_core.api.bodies import JsonObject
from parallax_core.api.dialect import (
    AnswerParsing,
    Overloaded,
    ResponseFlow,
    TokenCounts,
    TokenWriter,
    continues,
    explain,
    make_call_id,
    read_text,
)

PREFIX = "resp_"
"""The beginning of the id of a response; the ids of its parts continue with the same letters as it."""


@dataclass(slots=True, kw_only=True)
class ResponsesWriter:
    """One response while its deltas are read. Every event has the next ``sequence_number``."""

    id: str
    plan: ResponsePlan
    parsing: AnswerParsing
    tokens: TokenWriter | None
    """Writes log-probabilities, if the client asked for them."""
    created_at: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    status: str = "in_progress"
    parts: list[OutputPart] = field(default_factory=list)
    done: list[JsonObject] = field(default_factory=list)
    """The parts that are complete, as they are sent."""
    usage: JsonObject | None = None
    error: JsonObject | None = None
    reason: str | None = None
    """Why the response is incomplete."""
    completed_at: int | None = None
    is_cancelled: bool = False
    """Whether the client has ended it."""
    num_events: int = 0
    logprobs: list[msgspec.Raw] = field(default_factory=list)
    """Of tokens that have given no text yet."""

    def begin(self) -> Iterator[JsonObject]:
        """Yield the events before the first delta."""
        for kind in ("response.created", "response.in_progress"):
            yield self._number({"type": kind, "response": self.write()})

    def queue(self) -> Iterator[JsonObject]:
        """Yield the events before the first delta of a response that waits for its turn; `start` ends that."""
        self.status = "queued"
        for kind in ("response.created", "response.queued"):
            yield self._number({"type": kind, "response": self.write()})

    def start(self) -> Iterator[JsonObject]:
        """Yield the event of a response that does not wait any more."""
        self.status = "in_progress"
        yield self._number({"type": "response.in_progress", "response": self.write()})

    async def collect(self, flow: ResponseFlow) -> None:
        """Read a whole answer; raises what `ResponseFlow.collect` raises."""
        async for _, delta in flow.collect():
            deque(self.read(delta), maxlen=0)
        deque(self.end(flow.count_tokens()), maxlen=0)

    def read(self, delta: Delta) -> Iterator[JsonObject]:
        """Yield the events for a delta."""
        if self.tokens is not None:
            self.logprobs += [msgspec.Raw(self.tokens.write_entry(entry)) for entry in delta.logprobs]
        for piece in self.parsing.read(delta):
            yield from map(self._number, self._add(piece))
        if delta.ended is not None:
            self.status = "incomplete" if delta.ended == "length" else "completed"
            self.reason = "max_output_tokens" if delta.ended == "length" else None

    def end(self, counts: TokenCounts) -> Iterator[JsonObject]:
        """Yield the events after the last delta; ``counts``: the tokens of the response."""
        if self.is_cancelled:
            self.status, self.reason = "cancelled", None
        elif not self.parts:
            yield from map(self._number, self._open(Content("")))
        yield from map(self._number, self._close("completed" if self.status == "completed" else "incomplete"))
        self.usage = _write_usage(counts, self.parsing.num_reasoning)
        if self.status == "completed":
            self.completed_at = int(time.time())
        kind = "response.completed" if self.status == "completed" else "response.incomplete"
        yield self._number({"type": kind, "response": self.write()})

    def fail(self, error: ParallaxError) -> Iterator[JsonObject]:
        """Yield the events of a response that breaks."""
        yield from map(self._number, self._close("incomplete"))
        self.status, self.error = "failed", {"code": find_code(error), "message": explain(error)}
        yield self._number({"type": "response.failed", "response": self.write()})

    def write(self) -> JsonObject:
        """Return the response as it is by now."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": self.status,
            "background": self.plan.in_background,
            "completed_at": self.completed_at,
            "error": self.error,
            "incomplete_details": {"reason": self.reason} if self.reason else None,
            "output": self.done,
            "usage": self.usage,
            **msgspec.json.decode(self.plan.echo, type=dict[str, msgspec.Raw]),
        }

    def _number(self, event: JsonObject) -> JsonObject:
        numbered = {**event, "sequence_number": self.num_events}
        self.num_events += 1
        return numbered

    def _add(self, piece: Piece) -> Iterator[JsonObject]:
        """Yield the events for a piece, which may end a part and begin another."""
        logprobs, self.logprobs = self.logprobs, []
        is_open = len(self.parts) > len(self.done)
        if not (is_open and continues(piece, self.parts[-1].kind)):
            yield from self._close("completed")
            yield from self._open(piece)
        if text := read_text(piece):
            yield from self.parts[-1].add(text, logprobs if isinstance(piece, Content) else [])

    def _open(self, piece: Piece) -> Iterator[JsonObject]:
        part = self._make_part(piece)
        self.parts.append(part)
        added = part.write("in_progress", is_empty=True)
        yield {"type": "response.output_item.added", "output_index": part.index, "item": added}
        yield from part.begin()

    def _close(self, status: PartStatus) -> Iterator[JsonObject]:
        """Yield the events at the end of the last part, if it is open."""
        if len(self.parts) == len(self.done):
            return
        part = self.parts[-1]
        yield from part.end()
        self.done.append(part.write(status))
        yield {"type": "response.output_item.done", "output_index": part.index, "item": self.done[-1]}

    def _make_part(self, piece: Piece) -> OutputPart:
        index, number = len(self.parts), f"{self.id.removeprefix(PREFIX)}{len(self.parts):04x}"
        match piece:
            case Reasoning():
                kind = OutputSummary if self.plan.summarizes else OutputReasoning
                return kind(id=f"rs_{number}", index=index, encrypts=self.plan.encrypts)
            case ToolCall():
                origin = self.plan.tools.get(piece.name) or ToolOrigin("function", piece.name)
                call_id = piece.id or make_call_id()
                if origin.kind == "custom":
                    return OutputCustomCall(id=f"ctc_{number}", index=index, call_id=call_id, origin=origin)
                return OutputCall(id=f"fc_{number}", index=index, call_id=call_id, origin=origin)
            case _:
                return OutputMessage(id=f"msg_{number}", index=index)


def _write_usage(counts: TokenCounts, num_reasoning: int) -> JsonObject:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": counts.prompt + counts.output,
    }


def find_code(error: ParallaxError) -> str:
    """Return OpenAI's code of the error of a response."""
    if isinstance(error, Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
