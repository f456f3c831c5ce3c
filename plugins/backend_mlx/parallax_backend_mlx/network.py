"""A loaded model of mlx-lm: tokens and a cache in, logits out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parallax_backend_mlx.cache import Cache, list_arrays
from parallax_backend_mlx.runtime import KVCache, Module, RotatingKVCache, make_prompt_cache, mx
from parallax_core.api import BackendFailed, Capability, LayerRange

PAGE_TOKENS = KVCache.step
"""What mlx-lm's caches grow by, in tokens."""
HOLDERS = ("", "language_model", "model")
BODIES = ("model", "transformer", "backbone", "language_model")
TOLERANCE = {mx.float32: 1e-4, mx.float16: 2e-2, mx.bfloat16: 1e-1}
"""How far the picked logits of the check may be from the others, as a share of the largest."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """What one token through the model shows, without computing anything."""

    vocab_size: int
    page_bytes: int
    """Of one sequence's caches over all layers when they hold up to `PAGE_TOKENS` tokens."""
    dtype: mx.Dtype
    """What activations are computed in."""


class Network:
    """The model and how to run it. Belongs to the thread that loaded it."""

    def __init__(self, model: Module) -> None:
        self._model: Any = model
        self._pick: Pick | None = None
        self.num_layers = len(self._model.layers)
        self.layers = LayerRange(0, self.num_layers)
        self.shape = self._measure_shape()

    @property
    def is_first(self) -> bool:
        """Whether it begins with layer 0, and so with token ids."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends with the last layer, and so with logits."""
        return self.layers.stop == self.num_layers

    def list_entries(self) -> list[int]:
        """Return which entries of a cache the layers of this network own, in ascending order."""
        return list(range(len(self.make_cache())))

    def make_cache(self) -> Cache:
        """Return the empty cache of a new sequence."""
        cache: Cache = make_prompt_cache(self._model)
        return cache

    def can_rewind(self) -> bool:
        """Whether a sequence can go back to any length; states and sliding windows cannot."""
        return all(type(entry) is KVCache for entry in self.make_cache())

    def list_slides(self) -> list[bool]:
        """Return, for each layer, whether its cache keeps a sliding window only."""
        return [isinstance(entry, RotatingKVCache) for entry in self.make_cache()]

    def run_tokens(self, tokens: Sequence[int], cache: Cache, wanted: Sequence[int]) -> mx.array:
        """Append ``tokens`` to ``cache`` and return the logits at some of them, not evaluated yet.

        Args:
            tokens: token ids that follow what the cache holds.
            cache: of one sequence; advanced at once, while its arrays are still to be computed.
            wanted: indices into ``tokens``.

        Returns:
            Logits of shape [len(wanted), vocab_size]. Leaving them unevaluated costs no head.
        """
        places = mx.array(list(wanted), dtype=mx.int32)
        return self.run(mx.array([list(tokens)], dtype=mx.int32), None, cache, places)

    def run(self, tokens: mx.array, hidden: mx.array | None, cache: Sequence[Any], wanted: mx.array | None) -> mx.array:
        """Append ``tokens`` to ``cache`` and return what comes of them, not evaluated yet.

        Args:
            tokens: int32 of shape [rows, columns].
            hidden: what the stage before gave, shape [rows, columns, width]; None if this one begins with layer 0.
            cache: as long as that of `make_cache`, and with the interface of its entries; advanced at once.
            wanted: int32 of shape [places]: of which tokens logits are wanted, as row * columns + column; None if of
                none. A network without the last layer does not look at it.

        Returns:
            Logits of shape [places, vocab_size]; without the last layer, or if none are wanted, an array whose
            evaluation brings every layer and so the cache up to date.
        """
        assert hidden is None
        if self._pick is not None:
            self._pick.places = wanted
        logits: mx.array = self._model(tokens, cache=cache)
        logits = logits.reshape(-1, logits.shape[-1])
        return logits if self._pick is not None or wanted is None else logits[wanted]

    def list_capabilities(self) -> set[Capability]:
        """Return what a stage with this network can do beside what all can."""
        if not self.is_last:
            return set()
        return {"logprobs"} if self._pick is None else {"logprobs", "hidden"}

    @property
    def states(self) -> mx.array | None:
        """What the last `run` gave its head: hidden states after the final norm, shape [places, width].

        None if the model's head cannot be told from the rest. Not evaluated.
        """
        return self._pick.states if self._pick is not None else None

    def install_pick(self) -> None:
        """Have the head compute only the wanted positions, where the model allows it; checked by running it."""
        probe, wanted = (0, 1, 0), (0, 2)
        expected = self.run_tokens(probe, self.make_cache(), wanted)
        for holder, name in self._list_bodies():
            body = getattr(holder, name)
            self._pick = Pick(body)
            setattr(holder, name, self._pick)
            if self._check_pick(probe, wanted, expected):
                return
            setattr(holder, name, body)
            self._pick = None
        logger.info("head computes every position of a prompt")

    def _list_bodies(self) -> Iterator[tuple[Any, str]]:
        """Yield places where a model of mlx-lm may keep what comes before its head: holder and attribute."""
        for path in HOLDERS:
            holder = getattr(self._model, path, None) if path else self._model
            for name in BODIES:
                if isinstance(holder, Module) and isinstance(getattr(holder, name, None), Module):
                    yield holder, name

    def _check_pick(self, probe: Sequence[int], wanted: Sequence[int], expected: mx.array) -> bool:
        try:
            found = self.run_tokens(probe, self.make_cache(), wanted)
            if found.shape != expected.shape:
                return False
            error = mx.max(mx.abs(found - expected)) / mx.max(mx.abs(expected))
            return bool((error <= TOLERANCE[self.shape.dtype]).item())
        except Exception:  # noqa: BLE001  # model files are of every kind; one that cannot be picked from just costs more
            return False

    def _measure_shape(self) -> Shape:
        cache = self.make_cache()
        try:
            logits = self._model(mx.array([[0]]), cache=cache)
        except Exception as error:  # model files are of every kind, and fail in every way
            hint = "check config.json, update mlx-lm, or try another backend"
            raise BackendFailed(f"mlx-lm cannot run this model: {error}", hint) from error
        floats = [array for array in list_arrays([cache]) if mx.issubdtype(array.dtype, mx.floating)]
        return Shape(
            vocab_size=logits.shape[-1],
            page_bytes=max(1, sum(entry.nbytes for entry in cache)),
            dtype=floats[0].dtype if floats else logits.dtype,
        )


class Pick:
    """Stands where the body of a model was, and hands the head the hidden states of the wanted places only."""

    def __init__(self, body: Module) -> None:
        self._body: Any = body
        self.places: mx.array | None = None
        self.states: mx.array | None = None

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
