"""Reads the requests of a batch, and keeps its results in a file that a later run continues."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parallax_core.api import ParallaxError
from parallax_core.api.cli import UsageError

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The routes that OpenAI's batches may name; a server without one of them answers with 404."""
FIELDS = frozenset({"custom_id", "method", "url", "body"})
"""The fields of a line, all of which it needs."""
BEGINNING = b'{"id": "batch_req_'
"""The beginning of each result."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request of a batch."""

    custom_id: str
    """Identifies it and its result."""
    url: str
    """One of `ROUTES`."""
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is not a request."""

    custom_id: str | None
    """None if the line has no ``custom_id``."""
    code: str
    message: str


def read_requests(path: Path) -> Iterator[BatchRequest | InvalidLine]:
    """Yield the request of each line that is not blank, in order. A ``custom_id`` that comes again is invalid."""
    seen: set[str] = set()
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            found = _read_line(number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line)
            if isinstance(found, BatchRequest):
                if found.custom_id in seen:
                    message = f"line {number}: an earlier line has the custom_id '{found.custom_id}'"
                    found = InvalidLine(found.custom_id, "duplicate_custom_id", message)
                seen.add(str(found.custom_id))
            yield found


def count_requests(path: Path) -> int:
    """Return the number of lines that are not blank.

    Raises:
        UsageError: if the file cannot be read.
    """
    try:
        with path.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise UsageError(message, "give a file of JSON lines, each with custom_id, method, url and body") from error


def _read_line(number: int, line: bytes) -> BatchRequest | InvalidLine:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return InvalidLine(None, "invalid_json", f"line {number} is not JSON: {error}")
    if not isinstance(fields, dict):
        return InvalidLine(None, "invalid_json", f"line {number} is not a JSON object")
    name = fields.get("custom_id")
    custom_id = name if isinstance(name, str) and name else None
    if fault := _find_fault(fields):
        return InvalidLine(custom_id, "invalid_request", f"line {number}: {fault}")
    assert custom_id is not None
    return BatchRequest(custom_id, fields["url"], fields["body"])


def _find_fault(fields: dict[str, Any]) -> str:
    """Return why the object of a line is not a request; empty: it is one."""
    name, url, body = (fields.get(field) for field in ("custom_id", "url", "body"))
    if unknown := sorted(fields.keys() - FIELDS):
        return f"unknown field '{unknown[0]}'"
    if not (isinstance(name, str) and name):
        return "'custom_id' must be a text that is not empty"
    if fields.get("method") != "POST":
        return "'method' must be 'POST'"
    if url not in ROUTES:
        return f"'url' must be one of {', '.join(ROUTES)}"
    if not isinstance(body, dict):
        return "'body' must be an object"
    return "'body.stream' must be false: a batch has whole answers" if body.get("stream") else ""


class ResultFile:
    """The results of a batch, one line of JSON each. Another process cannot write it at the same time."""

    def __init__(self, path: Path, *, is_kept: bool) -> None:
        """Open the file at ``path``; keep the results of an earlier run if ``is_kept``, or else remove them.

        Raises:
            UsageError: if the file is not one of results, cannot be written, or another process writes it.
        """
        self.path = path
        self.done: set[str] = set()
        """The ``custom_id`` of each result of an earlier run."""
        try:
            with contextlib.ExitStack() as stack:
                self._file = stack.enter_context(path.open("a+b"))
                self._lock()
                size = self._read()
                self._file.truncate(size if is_kept else 0)
                stack.pop_all()
        except OSError as error:
            message = f"cannot write {path}: {error.strerror or error}"
            raise UsageError(message, "give another path with --output or --errors") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, custom_id: str | None, response: dict[str, Any] | None, error: dict[str, str] | None = None) -> None:
        """Write a result in OpenAI's form; a power failure afterwards does not lose it."""
        name = f"batch_req_{secrets.token_hex(12)}"
        line = {"id": name, "custom_id": custom_id, "response": response, "error": error}
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another process writes {self.path}"
            raise UsageError(message, "wait until that batch has ended, or give other paths") from error

    def _read(self) -> int:
        """Read the results of an earlier run; return their length in bytes, without a last line that was cut off."""
        self._file.seek(0)
        length, line = 0, b""
        for line in self._file:
            if line.endswith(b"\n"):
                self._note(line)
                length += len(line)
        if line[: len(BEGINNING)] != BEGINNING[: len(line)]:
            raise self._not_results()
        return length

    def _note(self, line: bytes) -> None:
        try:
            result = json.loads(line)
            if not {"id", "custom_id", "response", "error"} <= result.keys():
                raise self._not_results()
        except (ValueError, AttributeError) as error:
            raise self._not_results() from error
        if isinstance(result["custom_id"], str):
            self.done.add(result["custom_id"])

    def _not_results(self) -> ParallaxError:
        message = f"{self.path} is there already, and has no results of a batch"
        return UsageError(message, "give another path with --output or --errors")
