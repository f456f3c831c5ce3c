"""Writes answers of the server's own routes, which are OpenAI's, as Ollama's API has them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

Json = dict[str, Any]

DATA, DONE = b"data: ", b"[DONE]"
"""The beginning of an event of the server, and the last one."""
END = b"\n\n"
"""The end of an event."""


def write_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def name_error(body: Json) -> Json:
    """Return an error of the server in Ollama's form."""
    return {"error": body["error"]["message"]}


class BrokenStream(Exception):
    """The server's stream has ended with an error."""


class Embedded(msgspec.Struct):
    """An embedding in an answer of the server."""

    embedding: msgspec.Raw
    """Its numbers, which are passed on as they are."""


class EmbeddingUsage(msgspec.Struct):
    """The token counts of an answer of the server."""

    prompt_tokens: int


class Embeddings(msgspec.Struct):
    """An answer of ``/v1/embeddings``."""

    data: list[Embedded]
    usage: EmbeddingUsage

    def write(self, model: str, seconds: float) -> bytes:
        """Return the reply for the client."""
        reply = {
            "model": model,
            "embeddings": [each.embedding for each in self.data],
            "total_duration": _nanoseconds(seconds),
            "load_duration": 0,
            "prompt_eval_count": self.usage.prompt_tokens,
        }
        return msgspec.json.encode(reply)


@dataclass(slots=True)
class Reply:
    """The reply to one request, from the chunks of a stream or from a whole answer."""

    model: str
    """The name by which the client knows the model."""
    is_chat: bool
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    """When the first token came, by the same clock."""
    calls: dict[int, Json] = field(default_factory=dict)
    reason: str = "stop"
    prompt_tokens: int = 0
    output_tokens: int = 0

    async def read_whole(self, pieces: AsyncIterator[bytes]) -> Json:
        """Return the whole reply, from the pieces of the server's stream of events; an error is `BrokenStream`."""
        texts: list[str] = []
        thoughts: list[str] = []
        async for event in read_events(pieces):
            if "error" in event:
                raise BrokenStream(event["error"]["message"])
            self._note(event, {})
            for part in self._read_parts(event):
                texts.append(part.get("content") or "")
                thoughts.append(part.get("reasoning_content") or "")
        calls, rest = self._take_calls()
        part = {"content": "".join(texts) + rest, "reasoning_content": "".join(thoughts)}
        return {**self._write(part, calls), **self._write_end()}

    def read_chunk(self, chunk: Json) -> Iterator[Json]:
        """Yield the parts of the reply that a chunk of a stream gives."""
        self._note(chunk, {})
        for part in self._read_parts(chunk):
            if part.get("content") or part.get("reasoning_content"):
                yield self._write(part, [])

    def end(self) -> Iterator[Json]:
        """Yield the last parts of a stream: the calls, and the end."""
        calls, rest = self._take_calls()
        if calls or rest:
            yield self._write({"content": rest}, calls)
        yield {**self._write({}, []), **self._write_end()}

    def _read_parts(self, chunk: Json) -> Iterator[Json]:
        """Yield the parts of a chunk, whose calls are collected."""
        for choice in chunk.get("choices", ()):
            self._note({}, choice)
            part = choice["delta"] if "delta" in choice else {"content": choice.get("text")}
            for call in part.get("tool_calls") or ():
                self._add_call(call)
            yield part

    def _note(self, answer: Json, choice: Json) -> None:
        """Note the counts and the end of an answer."""
        if usage := answer.get("usage"):
            self.prompt_tokens, self.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if reason := choice.get("finish_reason"):
            self.reason = "length" if reason == "length" else "stop"
        if self.first is None and (choice or usage):
            self.first = time.monotonic()

    def _add_call(self, piece: Json) -> None:
        """Add a piece of a call; Ollama sends calls whole."""
        call = self.calls.setdefault(piece["index"], {"name": "", "arguments": ""})
        function = piece.get("function") or {}
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _take_calls(self) -> tuple[list[Json], str]:
        """Return the calls, and the text of those whose arguments, as the model wrote them, are no JSON object."""
        calls: list[Json] = []
        rest = ""
        for at, call in sorted(self.calls.items()):
            arguments = read_object(call["arguments"] or "{}")
            if arguments is None:
                rest += f"{call['name']} {call['arguments']}"
            else:
                calls.append({"function": {"index": at, "name": call["name"], "arguments": arguments}})
        return calls, rest

    def _write(self, part: Json, calls: list[Json]) -> Json:
        content, thinking = part.get("content") or "", part.get("reasoning_content")
        extra: Json = {"thinking": thinking} if thinking else {}
        common: Json = {"model": self.model, "created_at": write_time(time.time())}
        if not self.is_chat:
            return {**common, "response": content, **extra, "done": False}
        message: Json = {"role": "assistant", "content": content, **extra}
        if calls:
            message["tool_calls"] = calls
        return {**common, "message": message, "done": False}

    def _write_end(self) -> Json:
        now = time.monotonic()
        first = self.first or now
        return {
            "done": True,
            "done_reason": self.reason,
            "total_duration": _nanoseconds(now - self.began),
            "load_duration": 0,
            "prompt_eval_count": self.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self.began),
            "eval_count": self.output_tokens,
            "eval_duration": _nanoseconds(now - first),
        }


def read_object(text: str) -> Json | None:
    """Return the JSON object in a text, or None if it is not an object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


async def write_lines(pieces: AsyncIterator[bytes], reply: Reply) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, from the pieces of the server's stream of events."""
    async for event in read_events(pieces):
        if "error" in event:
            yield _to_line({"error": event["error"]["message"]})
            return
        for part in reply.read_chunk(event):
            yield _to_line(part)
    for part in reply.end():
        yield _to_line(part)


async def read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Json]:
    """Yield the events of the server's stream, without comments and the mark of its end."""
    buffer = b""
    async for piece in pieces:
        *events, buffer = (buffer + piece).split(END)
        for event in events:
            if event.startswith(DATA) and (data := event.removeprefix(DATA)) != DONE:
                yield json.loads(data)


def _to_line(part: Json) -> bytes:
    return json.dumps(part, ensure_ascii=False).encode() + b"\n"
