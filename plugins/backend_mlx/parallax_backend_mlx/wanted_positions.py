"""Has the head of a model compute only the positions that are wanted."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_backend_mlx.runtime import Module, mx

HOLDERS = ("", "language_model", "model")
BODIES = ("model", "transformer", "backbone", "language_model")


class Pick:
    """Stands where the body of a model was, and hands the head the hidden states of the wanted places only."""

    def __init__(self, holder: Module, name: str) -> None:
        self._holder, self._name = holder, name
        self._body = getattr(holder, name)
        self.places: mx.array | None = None
        self.states: mx.array | None = None
        setattr(holder, name, self)

    def remove(self) -> None:
        """Put the body back."""
        setattr(self._holder, self._name, self._body)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the body: hidden states of shape [rows, columns, width] become [1, places, width]."""
        hidden: mx.array = self._body(*args, **kwargs)
        if self.places is None:
            self.states = None
            return hidden
        self.states = hidden.reshape(-1, hidden.shape[-1])[self.places]
        return self.states[None]

    def __getattr__(self, name: str) -> object:
        """Return what the body has: the head may be its embedding."""
        return getattr(self._body, name)


def list_bodies(model: Module) -> Iterator[tuple[Module, str]]:
    """Yield places where a model of mlx-lm may keep what comes before its head: holder and attribute."""
    for path in HOLDERS:
        holder = getattr(model, path, None) if path else model
        for name in BODIES:
            if isinstance(holder, Module) and isinstance(getattr(holder, name, None), Module):
                yield holder, name
