"""Makes the head of a model compute only the wanted positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallax_backend_mlx.runtime import Module, mx

HOLDERS = ("", "language_model", "model")
BODIES = ("model", "transformer", "backbone", "language_model")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The positions whose results are wanted; a position is row * columns + column."""

    places: mx.array
    """The position of each output, int32 of shape [outputs]."""
    sums: tuple[tuple[int, slice], ...] = ()
    """Each output that sums hidden states, by its index, with the positions to sum."""

    def pool(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        """Return the hidden state of each output, [outputs, width], and the same with sums for outputs that sum.

        Args:
            hidden: the states of all positions, [positions, width]. Sums of them are float32.
        """
        taken = pooled = hidden[self.places]
        if self.sums:
            pooled = taken.astype(mx.float32)
            for index, positions in self.sums:
                pooled[index] = hidden[positions].astype(mx.float32).sum(axis=0)
        return taken, pooled


class Pick:
    """Replaces the body of a model, and gives the head only the hidden states of the wanted positions."""

    def __init__(self, holder: Module, name: str) -> None:
        self._holder, self._name = holder, name
        self._body = getattr(holder, name)
        self.wanted: Wanted | None = None
        self.states: mx.array | None = None
        setattr(holder, name, self)

    def remove(self) -> None:
        """Restore the body."""
        setattr(self._holder, self._name, self._body)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the body: hidden states of shape [rows, columns, width] become [1, places, width]."""
        hidden: mx.array = self._body(*args, **kwargs)
        if self.wanted is None:
            self.states = None
            return hidden
        taken, self.states = self.wanted.pool(hidden.reshape(-1, hidden.shape[-1]))
        return taken[None]

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the body, such as the embedding of a tied head."""
        return getattr(self._body, name)


def list_bodies(model: Module) -> Iterator[tuple[Module, str]]:
    """Yield the attributes that may hold the body of a model, the modules before its head: holder and name."""
    for path in HOLDERS:
        holder = getattr(model, path, None) if path else model
        for name in BODIES:
            if isinstance(holder, Module) and isinstance(holder.get(name), Module):  # a property cannot be replaced
                yield holder, name
