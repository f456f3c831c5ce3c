"""Limits the output tokens and the priority that each client may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import fastapi
import msgspec

from parallax_core.base.errors import InvalidRequest, Overloaded
from parallax_core.server.body_messages import ParsedBody
from parallax_core.server.client_id import identify
from parallax_core.server.options import ServerOptions


@dataclass(slots=True)
class CallerShare:
    """The part of a client's token budget that one request holds."""

    running: Counter[bytes]
    caller: bytes
    tokens: int

    def release(self) -> None:
        """Return the tokens to the budget. Idempotent."""
        self.running[self.caller] -= self.tokens
        self.tokens = 0
        if not self.running[self.caller]:
            del self.running[self.caller]


class Quota:
    """Enforces the limits of each client, which is a key or, without keys, an address.

    The budget counts the output tokens that running requests may generate: for each prompt, the number of answers times
    their maximum length. A request without a maximum may fill the context, or the whole budget if that is less.
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        options = options or ServerOptions()
        self.find_most: Callable[[bytes], int] = lambda _: options.max_output_tokens
        """Returns the most output tokens that a client may have running, by its id; 0: any number."""
        self._min_priority = options.min_priority
        self._by_key = options.keys.are_needed
        self._running: Counter[bytes] = Counter()

    def identify(self, http: fastapi.Request) -> bytes:
        """Return an id of the client that sent a request."""
        return identify(http.scope, by_key=self._by_key)

    def claim(self, reading: ParsedBody, room: int, http: fastapi.Request) -> tuple[ParsedBody, list[CallerShare]]:
        """Return the body with its length limited, and a share of the client's budget for each of its requests.

        Args:
            reading: the parsed body.
            room: the longest sequence that can be served, in tokens; 0 while that is not known.
            http: its HTTP request, with a checked key.

        Raises:
            InvalidRequest: if the client may never ask for this.
            Overloaded: if the client may not ask for this now.
        """
        self._check_priority(reading, getattr(http.state, "role", "admin"))
        caller = self.identify(http)
        if not (most := self.find_most(caller)):
            return reading, [CallerShare(Counter(), b"", 0) for _ in reading.prompts]
        reading = _limit_length(reading, room, most)
        costs = _weigh(reading, room)
        if sum(costs) > most:
            message = f"{len(costs) * reading.request.n} answers of up to {reading.request.max_tokens} tokens are "
            message += f"{sum(costs)} output tokens, and a client may have {most} running"
            raise InvalidRequest(message, "max_tokens", "ask for fewer or shorter answers at a time")
        if (running := self._running[caller]) + sum(costs) > most:
            message = f"you have {running} output tokens running, and may have {most}"
            raise Overloaded(message, "try again when some of your requests have ended")
        self._running[caller] += sum(costs)
        return reading, [CallerShare(self._running, caller, cost) for cost in costs]

    def _check_priority(self, reading: ParsedBody, role: str) -> None:
        priority = reading.request.priority
        if priority < self._min_priority and role != "admin":
            rule = f"with a key of the role 'user' it must be {self._min_priority} or more"
            hint = "lower numbers, which are served first, need a key of the role 'admin'"
            raise InvalidRequest(f"'priority' is {priority}, and {rule}", "priority", hint)


def _limit_length(reading: ParsedBody, room: int, most_tokens: int) -> ParsedBody:
    """Return a body, limited in length if it is unlimited and might exceed the whole budget."""
    request = reading.request
    if request.max_tokens is not None or 0 < sum(_weigh(reading, room)) <= most_tokens:
        return reading
    most = max(1, most_tokens // (request.n * len(reading.prompts)))
    return msgspec.structs.replace(reading, request=replace(request, max_tokens=most))


def _weigh(reading: ParsedBody, room: int) -> list[int]:
    """Return the largest number of output tokens of each request."""
    request = reading.request
    if request.max_tokens is not None:
        return [request.n * request.max_tokens] * len(reading.prompts)
    return [request.n * max(0, room - length) for length in reading.lengths]
