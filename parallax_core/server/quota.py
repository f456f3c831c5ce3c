"""What one caller may ask of the engine: how many tokens at once, and how urgently."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import fastapi
import msgspec

from parallax_core.base.errors import InvalidRequest, Overloaded
from parallax_core.server.body_messages import ParsedBody
from parallax_core.server.client_id import identify
from parallax_core.server.options import ServerOptions


@dataclass(slots=True)
class CallerShare:
    """Output tokens that one request may still come to, out of the budget of whoever asked."""

    running: Counter[bytes]
    caller: bytes
    tokens: int

    def release(self) -> None:
        """Give them back. Twice is harmless."""
        self.running[self.caller] -= self.tokens
        self.tokens = 0
        if not self.running[self.caller]:
            del self.running[self.caller]


class Quota:
    """Holds each caller, a key or without keys an address, to what the edge allows it.

    The budget of output tokens counts what requests under way may come to: answers times their greatest length, for
    each prompt. One with no greatest length gets what the context holds, or the whole budget if that is less.
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        options = options or ServerOptions()
        self._most_tokens = options.max_output_tokens
        self._min_priority = options.min_priority
        self._by_key = options.keys.are_needed
        self._running: Counter[bytes] = Counter()

    def claim(self, reading: ParsedBody, room: int, http: fastapi.Request) -> tuple[ParsedBody, list[CallerShare]]:
        """Return what may be asked of the engine, and a share of the caller's budget for each of its requests.

        Args:
            reading: what the caller asks for.
            room: the longest sequence there can be, in tokens; 0 while that is not known.
            http: the request it came with, from somebody whose key has been checked.

        Raises:
            InvalidRequest: if it may never ask that.
            Overloaded: if it may not now.
        """
        self._check_priority(reading, getattr(http.state, "role", "admin"))
        if not self._most_tokens:
            return reading, [CallerShare(Counter(), b"", 0) for _ in reading.prompts]
        caller = identify(http.scope, by_key=self._by_key)
        reading = self._limit_length(reading, room)
        costs = _weigh(reading, room)
        if sum(costs) > self._most_tokens:
            message = f"{len(costs) * reading.request.n} answers of up to {reading.request.max_tokens} tokens are "
            message += f"{sum(costs)} output tokens, and {self._most_tokens} may be under way at once"
            raise InvalidRequest(message, "max_tokens", "ask for fewer or shorter answers at a time")
        if (under_way := self._running[caller]) + sum(costs) > self._most_tokens:
            message = f"{under_way} output tokens of yours are under way, and {self._most_tokens} may be at once"
            raise Overloaded(message, "ask again when some have ended")
        self._running[caller] += sum(costs)
        return reading, [CallerShare(self._running, caller, cost) for cost in costs]

    def _check_priority(self, reading: ParsedBody, role: str) -> None:
        priority = reading.request.priority
        if priority < self._min_priority and role != "admin":
            message = f"'priority' is {priority}, and with a key of the role 'user' it is at least {self._min_priority}"
            raise InvalidRequest(message, "priority", "lower numbers are served before those of others")

    def _limit_length(self, reading: ParsedBody, room: int) -> ParsedBody:
        """Return ``reading`` with a greatest length, if it has none and may come to more than the whole budget."""
        request = reading.request
        if request.max_tokens is not None or 0 < sum(_weigh(reading, room)) <= self._most_tokens:
            return reading
        most = max(1, self._most_tokens // (request.n * len(reading.prompts)))
        return msgspec.structs.replace(reading, request=replace(request, max_tokens=most))


def _weigh(reading: ParsedBody, room: int) -> list[int]:
    """Return how many output tokens each request may come to."""
    request = reading.request
    if request.max_tokens is not None:
        return [request.n * request.max_tokens] * len(reading.prompts)
    return [request.n * max(0, room - length) for length in reading.lengths]
