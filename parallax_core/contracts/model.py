"""Model adapters, which describe an architecture to core without a tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.stage import PoolKind

Part = int | Literal["before", "after"]
"""The part of a model to which a tensor belongs: a layer by its number, or ``before`` or ``after`` all layers. The
embedding belongs to ``before``; if `ModelShape.is_tied`, the last stage needs it as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One layer: its memory per sequence, and its cost."""

    kind: PoolKind
    """The kind of its cache; see `PoolInfo.kind`."""
    weights: int
    """Parameters of the layer."""
    active_weights: int
    """Parameters used for one token: fewer than ``weights`` if there are experts. A token costs twice as many FLOPs."""
    kv_width: int = 0
    """Elements cached per token: keys and values of all heads, or a latent; 0 for a state.

    Also 0 for a layer that keeps nothing of a sequence, whose kind is ``full``.
    """
    state_width: int = 0
    """Elements kept per sequence, whatever its length."""
    window: int = 0
    """For a window: the number of tokens that a token attends to, itself included."""
    num_experts: int = 0
    """The number of experts that tokens are routed to; 0: none, or unknown. All experts have the same size."""
    num_active_experts: int = 0
    """The number of them that each token meets."""


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
    """Parameters before the layers: the embeddings."""
    after_weights: int
    """Parameters after the layers: the final norm, and the output head unless it is tied."""
    is_tied: bool
    """Whether the output head is the embedding, which then the first and the last stage hold."""


class ModelAdapter(Protocol):
    """Describes one family of architectures."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape of a model.

        Args:
            config: the contents of its config.json.

        Raises:
            Unsupported: if a setting asks for a feature that this family does not have; the message names the setting.
        """

    def find_part(self, tensor: str) -> Part:
        """Return the part of the model to which the tensor of this name belongs.

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
    """Their names in config.json, such as ``LlamaForCausalLM``."""
    adapter: Ref[ModelAdapter]
    blocks: Mapping[str, Ref[Any]] = field(default_factory=dict)
    """Layer builders by the name of a backend. The backend defines what a builder is, and gets it, loaded, in
    `StagePlan.blocks`."""
    remedy: str = ""
    """What to do if a Ref cannot be imported."""
    parser: str = ""
    """The name of the parser for the outputs of every model of this family; empty: the chat template decides."""
