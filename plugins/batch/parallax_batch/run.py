"""Sends the requests of a batch to a server, several at the same time, and writes the results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from parallax_batch.files import BatchRequest, InvalidLine, ResultFile
from parallax_client.client import Client, HttpReply
from parallax_core.api import ParallaxError

LOWEST_PRIORITY = 2**31 - 1
"""The ``priority`` of a request that states none: every other request is served first."""
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""The statuses after which a request is sent again."""
WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each new attempt after a connection has failed; after the last one the batch ends."""
MAX_WAIT_S = 60.0
"""The most seconds that the server's ``Retry-After`` is obeyed."""


@dataclass(slots=True)
class BatchCount:
    """The requests of a batch by what became of them."""

    skipped: int = 0
    """Those with a result of an earlier run."""
    answered: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.skipped + self.answered + self.failed


class BatchRunner:
    """Runs the requests of a batch on threads."""

    def __init__(
        self, client: Client, lines: Iterator[BatchRequest | InvalidLine], output: ResultFile, errors: ResultFile
    ) -> None:
        """Write answers to ``output``, and what fails to ``errors``; skip requests with a result in ``output``."""
        self._client = client
        self._lines = lines
        self._output = output
        self._errors = errors
        self._lock = threading.Lock()
        """Held while a line is read, or a result is written."""
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._count = BatchCount()
        self._on_result: Callable[[int], None] = lambda _: None

    def run(self, concurrency: int, on_result: Callable[[int], None]) -> BatchCount:
        """Run all requests, ``concurrency`` at a time; ``on_result`` is called with the number of those that are done.

        Raises:
            ParallaxError: if the server cannot be reached any more; the results so far are written.
        """
        self._on_result = on_result
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stopping.set()
        if self._failure is not None:
            raise self._failure
        return self._count

    def _work(self) -> None:
        """Run requests until there are no more."""
        try:
            while not self._stopping.is_set() and (line := self._take()) is not None:
                if isinstance(line, BatchRequest):
                    self._write(line.custom_id, self._send(line))
                else:
                    self._refuse(line)
        except BaseException as error:  # noqa: BLE001 -- raised again by `run`
            self._failure = self._failure or error
            self._stopping.set()

    def _take(self) -> BatchRequest | InvalidLine | None:
        """Return the next line without a result; None if there are no more."""
        with self._lock:
            for line in self._lines:
                if not (isinstance(line, BatchRequest) and line.custom_id in self._output.done):
                    return line
                self._count.skipped += 1
                self._on_result(self._count.total)
        return None

    def _send(self, request: BatchRequest) -> HttpReply:
        """Return the reply to a request, sent again while the server is too busy for it."""
        body = {"priority": LOWEST_PRIORITY, **request.body}
        while True:
            reply = self._reach(request.url.removeprefix("/v1"), body)
            if reply.status not in BUSY:
                return reply
            self._pause(min(reply.retry_after_s, MAX_WAIT_S))

    def _reach(self, path: str, body: dict[str, Any]) -> HttpReply:
        """Return the server's reply, over a new connection if one fails."""
        for wait_s in WAITS_S:
            try:
                return self._client.send(path, body)
            except ParallaxError:
                self._pause(wait_s)
        return self._client.send(path, body)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise ParallaxError("the batch was stopped")

    def _write(self, custom_id: str, reply: HttpReply) -> None:
        is_answer = reply.status == HTTPStatus.OK
        response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
        with self._lock:
            (self._output if is_answer else self._errors).add(custom_id, response)
            self._note(is_answer=is_answer)

    def _refuse(self, line: InvalidLine) -> None:
        with self._lock:
            self._errors.add(line.custom_id, None, {"code": line.code, "message": line.message})
            self._note(is_answer=False)

    def _note(self, *, is_answer: bool) -> None:
        if is_answer:
            self._count.answered += 1
        else:
            self._count.failed += 1
        self._on_result(self._count.total)
