"""Runs layers of a loaded mlx-lm model: from tokens or hidden states to logits or hidden states."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallax_backend_mlx.adapters import AdapterTable
from parallax_backend_mlx.cache import Cache, list_arrays
from parallax_backend_mlx.capabilities import STAGE_CAPABILITIES
from parallax_backend_mlx.model_slice import ModelSlice
from parallax_backend_mlx.module_map import name_kind
from parallax_backend_mlx.placeholders import Finished
from parallax_backend_mlx.runtime import KVCache, RotatingKVCache, flatten_tree, make_prompt_cache, mx
from parallax_backend_mlx.wanted_positions import Pick, Wanted, list_bodies
from parallax_core.api import BackendFailed, Capability, TensorSpec, Unsupported

PAGE_TOKENS = KVCache.step
"""The tokens by which mlx-lm's caches grow."""
TOLERANCE = {mx.float32: 1e-4, mx.float16: 2e-2, mx.bfloat16: 1e-1}
"""The largest difference allowed between picked logits and all logits, as a share of the largest logit, by dtype."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties found by passing one token through the layers, without evaluating it."""

    vocab_size: int
    width: int
    """The width of hidden states between stages; 0 for a whole model."""
    page_bytes: int
    """The bytes of one sequence's caches, over all layers, with up to `PAGE_TOKENS` tokens."""
    dtype: mx.Dtype
    """The dtype of activations."""


class Network:
    """Runs the layers of a model. Belongs to the thread that loaded them."""

    def __init__(self, model_slice: ModelSlice) -> None:
        self._model: Any = model_slice.model
        self._model_slice = model_slice
        self._pick: Pick | None = None
        self.layers = model_slice.layers
        self.num_layers = model_slice.num_layers
        self._owned, self._aliases = self._place_entries()
        dtype = self._guess_dtype()
        self.adapters = AdapterTable(self._model, self.layers, dtype)
        """The LoRA adapters of its modules, which it replaces before others are hidden."""
        model_slice.close(dtype)
        self.shape = self._measure_shape(dtype)

    @property
    def is_first(self) -> bool:
        """Whether it begins with layer 0, and so takes token ids."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends with the last layer, and so returns logits."""
        return self.layers.stop == self.num_layers

    @property
    def takes(self) -> tuple[TensorSpec, ...]:
        """The hidden states that it takes from the previous stage."""
        return () if self.is_first else (self._describe_hidden(),)

    @property
    def gives(self) -> tuple[TensorSpec, ...]:
        """The hidden states that it gives to the next stage."""
        return () if self.is_last else (self._describe_hidden(),)

    def make_cache(self) -> Cache:
        """Return the empty cache of a new sequence, of full length: entries of other stages' layers stay empty."""
        cache: Cache = make_prompt_cache(self._model)
        return cache

    def list_entries(self) -> list[int]:
        """Return the indices of the cache entries that layers of this network own, in ascending order."""
        return self._owned

    def can_rewind(self) -> bool:
        """Whether a sequence can be truncated to any length; states and sliding windows cannot."""
        cache = self.make_cache()
        return all(type(cache[index]) is KVCache for index in self._owned)

    def list_slides(self) -> list[bool]:
        """Return, for each layer of the whole model, whether its cache keeps a sliding window only."""
        return [isinstance(entry, RotatingKVCache) for entry in self.make_cache()]

    def list_capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of a stage with this network.

        Without the last layer, they are those that the last stage may have: a row passes through every stage, and the
        last one answers it.
        """
        has_hidden = not self.is_last or self._pick is not None
        lacks: set[Capability] = set() if has_hidden else {"hidden", "hidden_sums"}
        return STAGE_CAPABILITIES - (lacks if self.adapters.kept.sizes else lacks | {"adapters"})

    def run_tokens(self, tokens: Sequence[int], cache: Cache, wanted: Sequence[int]) -> mx.array:
        """Append ``tokens`` of one sequence to ``cache`` and return the logits at some of them; see `run`."""
        places = mx.array(list(wanted), dtype=mx.int32)
        return self.run(mx.array([list(tokens)], dtype=mx.int32), None, cache, Wanted(places))

    def run(self, tokens: mx.array, hidden: mx.array | None, cache: Sequence[Any], wanted: Wanted | None) -> mx.array:
        """Append ``tokens`` to ``cache`` and return the logits or hidden states, not evaluated yet.

        Args:
            tokens: int32 of shape [rows, columns].
            hidden: the output of the previous stage, shape [rows, columns, width]; None if there is no previous stage.
            cache: as long as that of `make_cache`, and with the interface of its entries; entries of this network are
                advanced at once. Other entries of the same kinds are not read.
            wanted: the tokens with outputs; None without outputs. Ignored without the last layer.

        Returns:
            Logits of shape [outputs, vocab_size]; without the last layer, hidden states of shape [rows, columns,
            width]; without outputs, an array whose evaluation computes every layer, and so the cache.
        """
        entry = self._model_slice.entry
        if entry is not None:
            entry.incoming = hidden
        if self._pick is not None:
            self._pick.wanted = wanted
        try:
            logits: mx.array = self._model(tokens, cache=[cache[index] for index in self._aliases])
        except Finished as finished:
            return finished.hidden
        finally:
            if entry is not None:
                entry.incoming = None
        logits = logits.reshape(-1, logits.shape[-1])
        return logits if self._pick is not None or wanted is None else logits[wanted.places]

    @property
    def states(self) -> mx.array | None:
        """The hidden states after the final norm in the last `run`, or sums, shape [outputs, width], not evaluated.

        None if the head of the model could not be found.
        """
        return self._pick.states if self._pick is not None else None

    def install_pick(self) -> None:
        """Make the head compute only the wanted positions, if the model allows it; checked by running it."""
        if not self.is_last:
            return
        expected = self._run_probe()
        for holder, name in list_bodies(self._model):
            self._pick = Pick(holder, name)
            if self._check_pick(expected):
                return
            self._pick.remove()
            self._pick = None
        logger.info("head computes every position of a prompt")

    def _check_pick(self, expected: mx.array) -> bool:
        try:
            found = self._run_probe()
            if found.shape != expected.shape:
                return False
            error = mx.max(mx.abs(found - expected)) / mx.max(mx.abs(expected))
            return bool((error <= TOLERANCE[self.shape.dtype]).item())
        except Exception:  # model files differ, and may raise anything; without picking, the head just computes more
            logger.debug("positions cannot be picked", exc_info=True)
            return False

    def _run_probe(self) -> mx.array:
        """Return the logits at the first and the last of three tokens."""
        noise = mx.random.normal((1, 3, self.shape.width), key=mx.random.key(0)).astype(self.shape.dtype)
        tokens = mx.array([[0, 1, 0]], dtype=mx.int32)
        wanted = Wanted(mx.array([0, 2], dtype=mx.int32))
        return self.run(tokens, None if self.is_first else noise, self.make_cache(), wanted)

    def _place_entries(self) -> tuple[list[int], list[int]]:
        """Return the indices of its own entries, and for each entry the index of an own one with the same mask."""
        cache = self.make_cache()
        dry_run = self._model_slice.dry_run
        if dry_run is None:
            everything = list(range(len(cache)))
            return everything, everything
        held = dry_run.entries[self.layers.start : self.layers.stop]
        owned = sorted(index for index in held if index is not None)
        first = {name_kind(cache[index]): index for index in reversed(owned)}
        # Models make masks from the first entry of a kind, which may belong to a layer of another stage.
        return owned, [
            index if index in owned else first.get(name_kind(entry), index) for index, entry in enumerate(cache)
        ]

    def _guess_dtype(self) -> mx.Dtype:
        """Return the dtype of most of its weights, and so of hidden states."""
        found = Counter(array.dtype for _, array in flatten_tree(self._model.parameters()))
        floats = [dtype for dtype, _ in found.most_common() if mx.issubdtype(dtype, mx.floating)]
        return floats[0] if floats else mx.float32

    def _measure_shape(self, dtype: mx.Dtype) -> Shape:
        dry_run, cache = self._model_slice.dry_run, self.make_cache()
        width = dry_run.width if dry_run else 0
        hidden = None if self.is_first else mx.zeros((1, 1, width), dtype=dtype)
        try:
            output = self.run(mx.zeros((1, 1), dtype=mx.int32), hidden, cache, None)
        except Unsupported:
            raise
        except Exception as error:  # model files differ, and may raise anything
            hint = "check config.json, update mlx-lm, or try another backend"
            raise BackendFailed(f"mlx-lm cannot run this model: {error}", hint) from error
        own = [cache[index] for index in self._owned]
        floats = [array for array in list_arrays([own]) if mx.issubdtype(array.dtype, mx.floating)]
        return Shape(
            vocab_size=dry_run.vocab_size if dry_run else output.shape[-1],
            width=width,
            page_bytes=max(1, sum(entry.nbytes for entry in own)),
            dtype=floats[0].dtype if floats and self.is_last else output.dtype,
        )

    def _describe_hidden(self) -> TensorSpec:
        return TensorSpec(self.shape.width, str(self.shape.dtype).rpartition(".")[2])
