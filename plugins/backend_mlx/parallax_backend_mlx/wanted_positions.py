"""Makes the head of a model compute only the wanted positions."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_backend_mlx.runtime import Module, mx

HOLDERS = ("", "language_model", "model")
BODIES = ("model", "transformer", "backbone", "language_model")


class Pick:
    """Replaces the body of a model, and gives the head only the hidden states of the wanted positions."""

    def __init__(self, holder: Module, name: str) -> None:
        self._holder, self._name = holder, name
        self._body = getattr(holder, name)
        self.places: mx.array | None = None
        self.states: mx.array | None = None
        setattr(holder, name, self)

    def remove(self) -> None:
        """Restore the body."""
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
        """Return an attribute of the body, such as the embedding of a tied head."""
        return getattr(self._body, name)


def list_bodies(model: Module) -> Iterator[tuple[Module, str]]:
    """Yield the attributes that may hold the body of a model, the modules before its head: holder and name."""
    for path in HOLDERS:
        holder = getattr(model, path, None) if path else model
        for name in BODIES:
            if isinstance(holder, Module) and isinstance(getattr(holder, name, None), Module):
                yield holder, name
