"""Decides when the layers of serving pipelines may move again, with a rest between moves."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_cluster.rebalancing.slowdown import SlowdownRules

MOST_MOVES = 6
"""The most moves that are remembered, each of which doubles the rest after the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveRules:
    """When layers move."""

    slowdown: SlowdownRules = field(default_factory=SlowdownRules)
    """When a node counts as slow."""
    holds: bool = False
    """Whether layers move only when a node is lost or leaves, or somebody asks for it."""
    rest_s: float = 30.0
    """Seconds of rest after a first move; each further one doubles them, up to 16 minutes."""
    calm_s: float = 600.0
    """Seconds without a move after which one move less is remembered."""


USUAL = MoveRules()


@dataclass(slots=True)
class MoveRest:
    """The rest of pipelines after moves; times are given, not read.

    Any move counts: also one for a node that was lost, after which better plans wait, and which itself never waits.
    """

    rules: MoveRules = USUAL
    _num_moves: int = 0
    _moved: float = 0.0
    """When the last move began, or when it counted as forgotten."""
    _until: float = 0.0
    _is_asked: bool = False

    def note_move(self, now: float) -> None:
        """Note that a pipeline which has served moves."""
        self._forget(now)
        self._num_moves, self._moved = min(MOST_MOVES, self._num_moves + 1), now
        self._until = now + self.rules.rest_s * 2 ** (self._num_moves - 1)

    def end(self) -> None:
        """Allow a move of layers now, on request, shortly after another or even if layers are held."""
        self._num_moves, self._until, self._is_asked = 0, 0.0, True

    def note_plan(self) -> None:
        """Note that a plan was made; what was asked for has been done, or would be no better."""
        self._is_asked = False

    def explain(self, now: float) -> str:
        """Return why pipelines that have all their nodes stay as they are; empty: they may move."""
        if self.rules.holds and not self._is_asked:
            return "layers are held where they are (--hold-moves)"
        if now < self._until:
            return f"layers have moved, and rest for {self._until - now:.0f} s"
        return ""

    def _forget(self, now: float) -> None:
        while self._num_moves and now >= max(self._moved, self._until) + self.rules.calm_s:
            self._num_moves -= 1
            self._moved = max(self._moved, self._until) + self.rules.calm_s
