"""Placeholders for the modules of other stages in a model.

They are modules without parameters, so that loading neither misses nor reads the weights of the replaced modules.
Those were built but are never computed: MLX is lazy, so they take no memory.
"""

from __future__ import annotations

from typing import Any

from parallax_backend_mlx.runtime import Module, mx
from parallax_core.api import Unsupported

AXES = 3
"""Of hidden states: rows, columns, width."""


class Finished(Exception):  # it is no error
    """Leaves the model after the last layer of a stage, with its hidden states."""

    def __init__(self, hidden: mx.array) -> None:
        super().__init__()
        self.hidden = hidden


class LayerPlaceholder(Module):
    """Has every attribute of a module but its parameters."""

    def __init__(self, module: Module) -> None:
        self.shelled: Any = module
        super().__init__()  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: object) -> None:
        """Keep what is set out of the parameters, where a module would put arrays and modules."""
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> object:
        """Return what the module has: what kind of layer it is, how wide its window is."""
        return getattr(object.__getattribute__(self, "shelled"), name)


class UnusedPlaceholder(LayerPlaceholder):
    """Stands for what is no layer: it is called in vain, before hidden states of the stage before replace its own."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the module as it was built."""
        return self.shelled(*args, **kwargs)


class Hole(LayerPlaceholder):
    """Stands for a layer of another stage: hidden states pass; the one before the first layer here brings its own."""

    def __init__(self, layer: Module) -> None:
        super().__init__(layer)
        self.incoming: mx.array | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the hidden states that came from the stage before, or what is given first as it is."""
        # A separate view: some models scale hidden states in place.
        return next(iter((*args, *kwargs.values()))) if self.incoming is None else self.incoming[...]


class Exit(LayerPlaceholder):
    """Replaces the last layer of a stage that is not the last: modules after it are not run."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        """Run the layer.

        Raises:
            Finished: with what it returns.
            Unsupported: if that is something else than hidden states of shape [rows, columns, width].
        """
        hidden = self.shelled(*args, **kwargs)
        if not isinstance(hidden, mx.array) or hidden.ndim != AXES:
            message = "the layers of this model return more than hidden states"
            raise Unsupported(message, "serve it whole, or try another backend")
        raise Finished(hidden)
