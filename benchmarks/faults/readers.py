"""Clients that read one stream after the other from a server over HTTP, and keep how each of them ended."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from benchmarks.faults.run import Figures

HANG_S = 150.0
"""Seconds without a token after which a stream counts as hung; a server gives up after 120."""
GAP_S = 0.2
"""Shorter waits for a piece of an answer are not recorded."""
RETRY_S = 0.3
CONNECTION_LOST = "the connection ended"
OUTCOMES = ("whole", "different", "hung", "lost", "error")
PROMPTS = (
    *("Once upon a time", "def fibonacci(n):", "The capital of France is", "Water boils at", "1, 2, 3, 5, 8,"),
    *("Dear Sir, I write to you because", "The quick brown fox", "In the beginning", "To make bread, take"),
    *("A list of colours: red,", "import os", "Once there were three bears, who"),
)


def make_questions(model: str, tokens: int, number: int = len(PROMPTS)) -> list[dict[str, Any]]:
    common = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    return [
        {**common, "prompt": prompt, **({"temperature": 0.8, "seed": index} if index % 2 else {"temperature": 0})}
        for index, prompt in enumerate(PROMPTS[:number])
    ]


@dataclass(slots=True)
class Stream:
    """A stream that a client has read, with its times in seconds."""

    number: int
    """The number of its question."""
    began: float
    text: str = ""
    finish: str = ""
    error: str = ""
    refused: int = 0
    """How often it was sent again before the first token: the server answered with a 503, or did not listen."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when until when the client waited for something, also for being admitted."""

    def judge(self, expected: str) -> str:
        if self.error:
            return {"hung": "hung", CONNECTION_LOST: "lost"}.get(self.error, "error")
        return "whole" if self.text == expected and self.finish == "length" else "different"


class Readers:
    """Threads, each of which reads one stream after the other."""

    def __init__(
        self, url: str, questions: Sequence[Mapping[str, Any]], number: int, enter: Callable[[], None] = lambda: None
    ) -> None:
        parts = urlsplit(url)
        self._place = parts.hostname or "", parts.port or 80
        self._enter = enter
        self._questions = list(questions)
        self._is_over = False
        self.streams: list[Stream] = []
        self.expected: list[str] = []
        self._threads = [threading.Thread(target=self._work, args=(seed,), daemon=True) for seed in range(number)]

    def learn(self, number: int | None = None) -> None:
        """Read the answers to all questions, or the next ones, one at a time, while nothing else happens.

        Raises:
            RuntimeError: if one fails.
        """
        first = len(self.expected)
        streams = self._read_apart(range(first, len(self._questions) if number is None else first + number))
        if failed := [stream.error for stream in streams if stream.error]:
            raise RuntimeError(f"the undisturbed answers failed: {failed}")
        self.expected += [stream.text for stream in streams]

    def ask_again(self) -> str:
        return self._read_apart(range(1))[0].judge(self.expected[0])

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> Figures:
        self._is_over = True
        for thread in self._threads:
            thread.join(2 * HANG_S)
        ends = Counter(stream.judge(self.expected[stream.number]) for stream in self.streams)
        ends["hung"] += sum(thread.is_alive() for thread in self._threads)
        return {
            "streams": len(self.streams),
            **{name: ends[name] for name in OUTCOMES},
            "errors": dict(Counter(stream.error for stream in self.streams if stream.error)),
            "refused": sum(stream.refused > 0 for stream in self.streams),
        }

    @property
    def gaps(self) -> list[tuple[float, float]]:
        return [gap for stream in self.streams for gap in stream.gaps]

    def _read_apart(self, numbers: Iterable[int]) -> list[Stream]:
        streams = list[Stream]()

        def work() -> None:
            self._enter()
            streams.extend(map(self._read, numbers))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return streams

    def _work(self, seed: int) -> None:
        self._enter()
        rng = random.Random(seed)
        while not self._is_over:
            stream = self._read(rng.randrange(len(self._questions)))
            if stream.error != "over":
                self.streams.append(stream)
            if stream.error:
                time.sleep(RETRY_S)

    def _read(self, number: int) -> Stream:
        """Send a request and read its stream to the end; ask again while the server is not ready."""
        stream = Stream(number, latest := time.monotonic())
        try:
            for choice in self._receive(stream):
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
        if stream.error and time.monotonic() - latest > GAP_S:
            stream.gaps.append((latest, time.monotonic()))
        return stream

    def _receive(self, stream: Stream) -> Iterator[dict[str, Any]]:
        """Yield the choices of the chunks of an answer.

        Raises:
            TimeoutError: if nothing was heard for too long.
            OSError: if the connection ends.
        """
        while (response := self._send(self._questions[stream.number])) is None:
            stream.refused += 1
            if self._is_over:
                stream.error = "over"
                return
            if time.monotonic() - stream.began > HANG_S:
                raise TimeoutError
            time.sleep(RETRY_S)
        if response.status != 200:
            stream.error = f"{response.status} {response.read().decode(errors='replace')[:300]}"
            return
        yield from read_events(response, stream)

    def _send(self, body: Mapping[str, Any]) -> HTTPResponse | None:
        """Send a request; return None if it is to be sent again: nobody listens, or the answer is a 503."""
        connection = HTTPConnection(*self._place, timeout=HANG_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        except ConnectionRefusedError:
            return None
        response = connection.getresponse()
        return None if response.status == 503 else response


def read_events(response: HTTPResponse, stream: Stream) -> Iterator[dict[str, Any]]:
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
