"""Clients that read one stream after the other from a server, and keep how each of them ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import count
from typing import Any

from benchmarks.run_cluster import Cluster
from tests.support.namespaces import enter

HANG_S = 150.0
"""Seconds without a token after which a stream counts as hung; a server gives up after 120."""
GAP_S = 0.3
"""Shorter waits for a piece of an answer are not recorded."""
RETRY_S = 0.5
CONNECTION_LOST = "the connection ended"


@dataclass(slots=True)
class Stream:
    """A stream that a client has read, with its times in seconds."""

    number: int
    """The number of its request."""
    began: float
    text: str = ""
    finish: str = ""
    error: str = ""
    refused: int = 0
    """How often it was sent again before the first token: the server answered with a 503, or did not listen."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when until when the client waited for something, also for being admitted."""
    ended: float = 0.0

    def judge(self, expected: str) -> str:
        """Return what became of it: whole, different, hung, lost (the connection ended) or error."""
        if self.error:
            return {"hung": "hung", CONNECTION_LOST: "lost"}.get(self.error, "error")
        return "whole" if self.text == expected and self.finish == "length" else "different"


class Clients:
    """Threads of the server's machine, each of which reads one stream after the other."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._numbers = count()
        self._lock = threading.Lock()
        self._is_over = False
        self.streams: list[Stream] = []
        self.expected: list[str] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(number)]

    def learn(self) -> None:
        """Read the answer to each request, one at a time, while nothing else happens.

        Raises:
            RuntimeError: if one fails.
        """
        streams = self._read_apart(range(len(self._cluster.served.prompts)))
        if failed := [stream.error for stream in streams if stream.error]:
            raise RuntimeError(f"the undisturbed answers failed: {failed}")
        self.expected = [stream.text for stream in streams]

    def ask_again(self) -> str:
        """Return what becomes of one more stream."""
        return self._read_apart(range(1))[0].judge(self.expected[0])

    def _read_apart(self, numbers: Iterable[int]) -> list[Stream]:
        """Read streams one after the other, in a thread on the server's machine."""
        streams = list[Stream]()

        def work() -> None:
            enter(self._cluster.server.machine.namespace)
            streams.extend(map(self._read, numbers))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return streams

    def start(self) -> None:
        """Start reading."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Read the streams that have begun to their ends."""
        self._is_over = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(2 * HANG_S)

    def _work(self) -> None:
        enter(self._cluster.server.machine.namespace)
        while not self._is_over:
            with self._lock:
                number = next(self._numbers) % len(self._cluster.served.prompts)
            self.streams.append(self._read(number))
            if self.streams[-1].error:
                time.sleep(RETRY_S)

    def _read(self, number: int) -> Stream:
        """Send a request and read its stream to the end; ask again while the server is not ready."""
        stream = Stream(number, latest := time.monotonic())
        try:
            for choice in self._receive(stream, self._write(number)):
                if (now := time.monotonic()) - latest > GAP_S:
                    stream.gaps.append((latest, now))
                latest = now
                stream.text += choice["text"]
                stream.finish = choice["finish_reason"] or stream.finish
            stream.error = stream.error or ("" if stream.finish else CONNECTION_LOST)
        except TimeoutError:
            stream.error = "hung"
        except (OSError, HTTPException):
            stream.error = CONNECTION_LOST
        stream.ended = time.monotonic()
        if stream.error and stream.ended - latest > GAP_S:
            stream.gaps.append((latest, stream.ended))
        return stream

    def _write(self, number: int) -> dict[str, Any]:
        """Return the request of a number: even ones are greedy, odd ones sampled with a seed."""
        sampling: dict[str, Any] = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        served = self._cluster.served
        model = self._cluster.served.model.rpartition("/")[2]
        body = {"model": model, "prompt": served.prompts[number], "max_tokens": served.tokens, "stream": True}
        return body | {"ignore_eos": True} | sampling

    def _receive(self, stream: Stream, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the choices of the chunks of an answer.

        Raises:
            TimeoutError: if nothing was heard for too long.
            OSError: if the connection ends.
        """
        while (response := self._send(body)) is None:
            stream.refused += 1
            if time.monotonic() - stream.began > HANG_S:
                raise TimeoutError
            time.sleep(RETRY_S)
        if response.status != 200:  # noqa: PLR2004 -- the status of an answer
            stream.error = f"{response.status} {response.read().decode(errors='replace')[:300]}"
            return
        yield from read_events(response, stream)

    def _send(self, body: dict[str, Any]) -> HTTPResponse | None:
        """Send a request; return None if it is to be sent again: nobody listens, or the answer is a 503."""
        connection = HTTPConnection("127.0.0.1", 8000, timeout=HANG_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        except ConnectionRefusedError:
            return None
        response = connection.getresponse()
        return None if response.status == 503 else response  # noqa: PLR2004 -- the status that asks for another try


def read_events(response: HTTPResponse, stream: Stream) -> Iterator[dict[str, Any]]:
    """Yield the choices of the events of an answer, and note an error in it."""
    latest = time.monotonic()
    for line in response:
        if time.monotonic() - latest > HANG_S:
            raise TimeoutError
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            stream.error = str(event["error"]["message"])
            return
        latest = time.monotonic()
        yield from event["choices"]
