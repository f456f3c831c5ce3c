"""Makes a full engine of one that gives tokens: checks requests, makes text, keeps time."""

from __future__ import annotations

from dataclasses import replace

from parallax_core.base.errors import Overloaded
from parallax_core.contracts.engine import Admitting, EngineStats, Health, Measured, Request
from parallax_core.contracts.status import Described, ReplicaLimits, ReplicaStatus
from parallax_core.contracts.token_engine import EngineInfo, TokenEngine
from parallax_core.engine.detokenizer import Decode
from parallax_core.engine.field_check import FieldCheck
from parallax_core.engine.limits import LEAST_WAITING, Limits
from parallax_core.engine.request_text import RequestText
from parallax_core.node.text_stream import TextStream


class TextEngine:
    """An `Engine` over a `TokenEngine`, in this process or another one. Belongs to one event loop."""

    def __init__(self, engine: TokenEngine, decode: Decode, limits: Limits | None = None) -> None:
        """Serve ``engine``.

        Args:
            engine: not started.
            decode: turns tokens into text.
            limits: the configured limits.
        """
        self._engine = engine
        self._decode = decode
        self._limits = limits or Limits()
        self._open: set[TextStream] = set()
        self._is_started = False

    async def start(self) -> None:
        """Start the engine; see `Engine.start`."""
        await self._engine.start()
        self._is_started = True

    async def stop(self) -> None:
        """Stop the engine; see `Engine.stop`."""
        await self._engine.stop()

    def submit(self, request: Request) -> TextStream:
        """Check a request against what the engine declares, and submit it; see `Engine.submit`."""
        if not self._is_started:
            return self._wrap(request, request)  # raises why the engine takes no requests
        asked = FieldCheck(self.info).check(request)
        self.check_room()
        return self._wrap(request, asked)

    def check_room(self) -> None:
        """Raise Unavailable if the engine is not ready, or too many requests wait; see `Admitting`."""
        engine: object = self._engine
        if isinstance(engine, Admitting):
            engine.check_room()
        if (limits := self.limits) is None:
            return
        if len(self._open) >= limits.max_running + limits.max_waiting:
            message = f"{limits.max_running} requests are running and {limits.max_waiting} are waiting already"
            raise Overloaded(message, "try again later")

    def health(self) -> Health:
        """Return the health of the engine."""
        return self._engine.health()

    def stats(self) -> tuple[EngineStats, ...]:
        """Return the statistics of the engine, if it has any; see `Measured`."""
        return self._engine.stats() if isinstance(self._engine, Measured) else ()

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of the engine; see `Described`."""
        engine: object = self._engine
        if isinstance(engine, Described):
            [status] = engine.describe()
        else:
            status = ReplicaStatus(health=self.health())
        stats = next(iter(self.stats()), EngineStats())
        takes_grammars = not self._is_started or "grammar" in self.info.honours
        poolings = () if self._is_started else status.poolings
        status = replace(status, takes_grammars=takes_grammars, poolings=poolings, limits=self.limits)
        return (replace(status, num_requests=len(self._open), stats=stats),)

    @property
    def info(self) -> EngineInfo:
        """The properties of the engine, once it has started."""
        return self._engine.info

    @property
    def limits(self) -> ReplicaLimits | None:
        """The limits of the engine; None before it has started."""
        if not self._is_started:
            return None
        info, wanted = self.info, self._limits.max_waiting
        return ReplicaLimits(
            max_running=info.max_running,
            max_waiting=max(LEAST_WAITING, 2 * info.max_running) if wanted is None else wanted,
            max_batch_tokens=info.max_batch_tokens,
        )

    @property
    def max_length(self) -> int:
        """The longest sequence that can be served, in tokens; 0 before the engine has started."""
        return self.info.context_length if self._is_started else 0

    def _wrap(self, request: Request, asked: Request) -> TextStream:
        inner = self._engine.submit(asked)
        stream = TextStream(inner, RequestText(request, self._decode), lambda: self._open.discard(stream))
        self._open.add(stream)
        stream.limit_time(request)
        return stream
