"""Model adapters: what core knows of an architecture, without a tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from parallax_core.base.refs import Ref

Part = int | Literal["before", "after"]
"""Where a tensor of a checkpoint belongs: a layer by its number, or what comes before the layers or after them. The
embedding comes before; where `ModelShape.is_tied` the last stage needs it as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One layer: what it holds for each sequence, and what it costs."""

    kind: Literal["full", "window", "latent", "state"]
    """What it remembers; see `PoolInfo.kind`."""
    weights: int
    """Parameters of the layer."""
    active_weights: int
    """Parameters a token meets: fewer than ``weights`` where there are experts. A token costs twice as many FLOPs."""
    kv_width: int = 0
    """Numbers kept per token: keys and values of all heads, or a latent; none for a state."""
    state_width: int = 0
    """Numbers kept per sequence, whatever its length."""
    window: int = 0
    """For a window: how many tokens a token sees, itself included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A model as its config.json describes it."""

    hidden_size: int
    vocab_size: int
    context_length: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerShape, ...]
    before_weights: int
    """Parameters of what comes before the layers: embeddings."""
    after_weights: int
    """Parameters of what comes after them: the final norm, and the head unless it is tied."""
    is_tied: bool
    """Whether the head is the embedding, which then both ends of a pipeline hold."""


class ModelAdapter(Protocol):
    """Knows one family of architectures."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape of a model.

        Args:
            config: the contents of its config.json.

        Raises:
            Unsupported: naming the setting, if it asks for what this family does not have.
        """

    def find_part(self, tensor: str) -> Part:
        """Return where the tensor of this name belongs.

        Raises:
            Unsupported: if a checkpoint of this family has no such tensor.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Offers an adapter."""

    name: str
    """The family, such as ``llama``."""
    summary: str
    """One line for ``parallax plugins``."""
    architectures: tuple[str, ...]
    """What config.json calls them, such as ``LlamaForCausalLM``."""
    adapter: Ref[ModelAdapter]
    blocks: Mapping[str, Ref[Any]] = field(default_factory=dict)
    """By the name of a backend, what builds the layers there; the backend says what that is, and finds it, loaded, in
    `StagePlan.blocks`. Only for backends that cannot build them by themselves."""
    remedy: str = ""
    """What to do when a Ref cannot be imported."""
