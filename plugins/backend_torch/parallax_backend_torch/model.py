"""The interface of the blocks of a family: the model's shape, layer caches, and layer builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parallax_backend_torch.config import FULL, SLIDING, Config
from parallax_backend_torch.rope import limit_context
from parallax_backend_torch.step import Carried, LayerCache, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.weights import Weights
from parallax_core.api import Unsupported


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The properties of a model outside its layers."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    is_tied: bool
    """Whether the head is tied to the embedding."""
    eps: float
    """The eps of the final norm."""
    embedding: str = "embed_tokens"
    """The name of the embedding in the checkpoint: ``embed_tokens`` or ``embeddings``."""
    norm: str = "norm"
    """The name of the final norm in the checkpoint: ``norm``, ``norm_f``, ``embedding_norm`` or
    ``final_layernorm``; empty: the last layer has what is in its place."""
    norm_offset: float = 0.0
    """See `arithmetic.Norm`."""
    embed_scale: float = 1.0
    """The factor of the embeddings."""
    logit_scale: float = 1.0
    """The factor of the logits."""
    soft_cap: float = 0.0
    """Logits become ``cap * tanh(logit / cap)``; 0: no cap."""
    every: tuple[str, ...] = ()
    """The first words of the names of tensors outside the layers that every stage loads."""
    after: tuple[str, ...] = ()
    """The same, of those that the last stage loads beside norm and head."""
    mapped: tuple[str, ...] = ()
    """The same, of tables that every stage leaves in their files, for `Weights.map_table`; or words in names of tensors
    of layers, which the stage of the layer leaves there."""


class Layer(Protocol):
    """One layer, or a part of one."""

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer, without changing the tensors in ``carried``.

        Args:
            carried: the planes before the layer: ``hidden`` of all tokens of the step, and what the family has beside.
            step: the inputs of all layers.
            cache: the cache of this layer, to which it adds the step's tokens; or that of the earlier layer that its
                `CacheSpec.source` names, which it only reads.
        """


def find_obstacle(part: object) -> str:
    """Return the reason why a layer, or a part of one, cannot be recorded and replayed; empty if it can.

    It can if it has a true attribute ``is_steady``: it reads no result back, no shape depends on a computed number, and
    it takes nothing from main memory except the step and its cache.
    """
    for each in (part, *(getattr(part, name, None) for name in ("attention", "mixer"))):
        if each is not None and not getattr(each, "is_steady", False):
            return f"{type(each).__name__} does different work in each step"
    return ""


class Model(Protocol):
    """A model of a family, by its config.json."""

    shape: Shape

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of the layer with this index."""

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer from its tensors."""


def read_shape(config: Config, *, is_tied: bool = False) -> Shape:
    """Return the shape of a model, from settings that most families share.

    Args:
        config: the settings of the model.
        is_tied: whether the head is tied to the embedding if config.json does not say.
    """
    return Shape(
        num_layers=config.count("num_hidden_layers"),
        hidden_size=config.count("hidden_size"),
        vocab_size=config.count("vocab_size"),
        context_length=limit_context(config),
        is_tied=config.flag("tie_word_embeddings", default=is_tied),
        eps=config.number("rms_norm_eps", 1e-6),
    )


def read_windows(config: Config, kinds: list[str]) -> tuple[int, ...]:
    """Return the window of each layer, 0 for full attention; ``kinds`` are the default kinds of the layers."""
    found = config.list_words("layer_types", (FULL, SLIDING), kinds)
    return tuple(0 if kind == FULL else config.count("sliding_window") for kind in found)


def check_choice(config: Config, name: str, allowed: str) -> None:
    """Refuse a model with a value of a setting that its family does not support.

    Raises:
        Unsupported: naming the setting.
    """
    found = config.raw.get(name, allowed)
    if found not in (allowed, None):
        raise Unsupported(
            f"{name!r} in config.json is {found!r}, and only {allowed!r} is supported", "try another backend"
        )
