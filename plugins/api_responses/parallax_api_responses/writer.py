"""Writes a response and its events, in OpenAI's form, from the deltas of an answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from parallax_api_responses import replies
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
from parallax_core.api.dialect import (
    AnswerParsing,
    Overloaded,
    ResponseFlow,
    TokenCounts,
    TokenWriter,
    continues,
    explain,
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
    reply: replies.ResponsesReply = field(init=False)
    """The response as it is by now: its output are the parts that are complete."""
    parts: list[OutputPart] = field(default_factory=list)
    created_at: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    is_cancelled: bool = False
    """Whether the client has ended it."""
    num_events: int = 0
    logprobs: list[msgspec.Raw] = field(default_factory=list)
    """Of tokens that have given no text yet."""

    def __post_init__(self) -> None:
        self.reply = msgspec.json.decode(self.plan.reply, type=replies.ResponsesReply)
        self.reply.id, self.reply.created_at = self.id, self.created_at

    def begin(self) -> Iterator[replies.ResponseEvent]:
        """Yield the events before the first delta."""
        yield self._show("response.created")
        yield self._show("response.in_progress")

    def queue(self) -> Iterator[replies.ResponseEvent]:
        """Yield the events before the first delta of a response that waits for its turn; `start` ends that."""
        self.reply.status = "queued"
        yield self._show("response.created")
        yield self._show("response.queued")

    def start(self) -> Iterator[replies.ResponseEvent]:
        """Yield the event of a response that does not wait any more."""
        self.reply.status = "in_progress"
        yield self._show("response.in_progress")

    async def collect(self, flow: ResponseFlow) -> None:
        """Read a whole answer; raises what `ResponseFlow.collect` raises."""
        async for _, delta in flow.collect():
            deque(self.read(delta), maxlen=0)
        deque(self.end(flow.count_tokens()), maxlen=0)

    def read(self, delta: Delta) -> Iterator[replies.ResponseEvent]:
        """Yield the events for a delta."""
        if self.tokens is not None:
            self.logprobs += [msgspec.Raw(self.tokens.write_entry(entry)) for entry in delta.logprobs]
        for piece in self.parsing.read(delta):
            yield from map(self._number, self._add(piece))
        if delta.ended is not None:
            self.reply.status = "incomplete" if delta.ended == "length" else "completed"

    def end(self, counts: TokenCounts) -> Iterator[replies.ResponseEvent]:
        """Yield the events after the last delta; ``counts``: the tokens of the response."""
        reply = self.reply
        if self.is_cancelled:
            reply.status = "cancelled"
        elif not self.parts:
            yield from map(self._number, self._open(Content("")))
        yield from map(self._number, self._close("completed" if reply.status == "completed" else "incomplete"))
        reply.usage = replies.ResponseUsage(
            counts.prompt,
            replies.InputDetails(counts.cached),
            counts.output,
            replies.ReasoningDetails(self.parsing.num_reasoning),
            counts.prompt + counts.output,
        )
        if reply.status == "incomplete":
            reply.incomplete_details = replies.IncompleteDetails("max_output_tokens")
        if reply.status == "completed":
            reply.completed_at = int(time.time())
        yield self._show("response.completed" if reply.status == "completed" else "response.incomplete")

    def fail(self, error: ParallaxError) -> Iterator[replies.ResponseEvent]:
        """Yield the events of a response that breaks."""
        yield from map(self._number, self._close("incomplete"))
        self.reply.status, self.reply.error = "failed", replies.ResponseFault(find_code(error), explain(error))
        yield self._show("response.failed")

    def _show(self, kind: replies.ProgressKind) -> replies.ResponseEvent:
        return self._number(replies.ResponseProgress(kind, self.reply))

    def _number(self, event: replies.ResponseEvent) -> replies.ResponseEvent:
        event.sequence_number = self.num_events
        self.num_events += 1
        return event

    def _add(self, piece: Piece) -> Iterator[replies.ResponseEvent]:
        """Yield the events for a piece, which may end a part and begin another."""
        logprobs, self.logprobs = self.logprobs, []
        is_open = len(self.parts) > len(self.reply.output)
        if not (is_open and continues(piece, self.parts[-1].kind)):
            yield from self._close("completed")
            yield from self._open(piece)
        if text := read_text(piece):
            yield from self.parts[-1].add(text, logprobs if isinstance(piece, Content) else [])

    def _open(self, piece: Piece) -> Iterator[replies.ResponseEvent]:
        part = self._make_part(piece)
        self.parts.append(part)
        added = part.write("in_progress", is_empty=True)
        yield replies.ResponsePartEvent("response.output_item.added", part.index, added)
        yield from part.begin()

    def _close(self, status: PartStatus) -> Iterator[replies.ResponseEvent]:
        """Yield the events at the end of the last part, if it is open."""
        if len(self.parts) == len(self.reply.output):
            return
        part = self.parts[-1]
        yield from part.end()
        self.reply.output.append(part.write(status))
        yield replies.ResponsePartEvent("response.output_item.done", part.index, self.reply.output[-1])

    def _make_part(self, piece: Piece) -> OutputPart:
        index, number = len(self.parts), f"{self.id.removeprefix(PREFIX)}{len(self.parts):04x}"
        match piece:
            case Reasoning():
                kind = OutputSummary if self.plan.summarizes else OutputReasoning
                return kind(id=f"rs_{number}", index=index, encrypts=self.plan.encrypts)
            case ToolCall():
                origin = self.plan.tools.get(piece.name) or ToolOrigin("function", piece.name)
                call_id = piece.id or f"call_{number}"  # the same when the response is restored
                if origin.kind == "custom":
                    return OutputCustomCall(id=f"ctc_{number}", index=index, call_id=call_id, origin=origin)
                return OutputCall(id=f"fc_{number}", index=index, call_id=call_id, origin=origin)
            case _:
                return OutputMessage(id=f"msg_{number}", index=index)


def find_code(error: ParallaxError) -> replies.FaultCode:
    """Return OpenAI's code of the error of a response."""
    if isinstance(error, Overloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
