"""Placeholders for the modules of other stages in a model.

They are modules without parameters, so that loading neither requires nor reads the weights of the replaced modules.
Those were built but are never computed: MLX is lazy, so they take no memory.
"""

from __future__ import annotations

from typing import Any

from parallax_backend_mlx.runtime import Module, mx
from parallax_core.api import Unsupported

AXES = 3
"""The axes of hidden states: rows, columns, width."""


class Finished(Exception):  # not an error
    """Leaves the model after the last layer of a stage, with its hidden states."""

    def __init__(self, hidden: mx.array) -> None:
        super().__init__()
        self.hidden = hidden


class LayerPlaceholder(Module):
    """Stands for a module: it has all its attributes except its parameters."""

    def __init__(self, module: Module) -> None:
        self.replaced: Any = module
        super().__init__()  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute without adding it to the parameters, as a module would for arrays and modules."""
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the module, such as its kind of layer or its window."""
        return getattr(object.__getattribute__(self, "replaced"), name)


class UnusedPlaceholder(LayerPlaceholder):
    """Replaces a module before the layers: its output is discarded for the hidden states of the previous stage."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the module unchanged."""
        return self.replaced(*args, **kwargs)


class PassThrough(LayerPlaceholder):
    """Replaces a layer of another stage: passes hidden states on; the last before this stage brings the input."""

    def __init__(self, layer: Module, extras: int = 0) -> None:
        super().__init__(layer)
        self.extras = extras
        self.incoming: mx.array | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Return the hidden states of the previous stage if set, else the first argument unchanged."""
        # A separate view: some models scale hidden states in place.
        hidden = next(iter((*args, *kwargs.values()))) if self.incoming is None else self.incoming[...]
        return (hidden, *[None] * self.extras) if self.extras else hidden


class Exit(LayerPlaceholder):
    """Replaces the last layer of a stage other than the last: modules after it are not run."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        """Run the layer.

        Raises:
            Finished: with the layer's output.
            Unsupported: if the output is not hidden states of shape [rows, columns, width].
        """
        found = self.replaced(*args, **kwargs)
        hidden = found[0] if isinstance(found, tuple) else found
        if not isinstance(hidden, mx.array) or hidden.ndim != AXES:
            message = "the layers of this model return more than hidden states"
            raise Unsupported(message, "serve it whole, or try another backend")
        raise Finished(hidden)
