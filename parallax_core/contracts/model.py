"""Model adapters, which describe an architecture to core without a tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.stage import PoolKind

Ends = Literal["before", "after"]
Part = int | Ends | Literal["every"]
"""The part of a model to which a tensor belongs: a layer by its number, or ``before`` or ``after`` all layers. The
embedding belongs to ``before``; if `ModelShape.is_tied`, the last stage needs it as well. ``every``: each layer has a
slice of it, so that every stage needs it."""
HIDDEN = "hidden"
"""The name of the plane that every layer of every family takes and gives."""


@dataclass(frozen=True, slots=True)
class Plane:
    """A tensor that goes from layer to layer: ``hidden``, or what a family has beside it."""

    name: str
    shape: tuple[int, ...]
    """The axes of one token, such as (4, 4096) for four streams."""
    dtype: str = ""
    """The only dtype in which it may cross from stage to stage, such as ``float32`` where the family's own code never
    rounds it; empty: that of the activations, which the next stage may convert."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """How a layer uses token ids, which every stage has: they are in the rows, so that no table's row has to travel."""

    num_before: int = 0
    """The number of tokens before each one whose ids it needs as well."""
    has_embedding: bool = False
    """Whether it looks up rows of the model's embedding, which every stage then needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One layer: its memory per sequence, and its cost."""

    kind: PoolKind
    """The kind of its cache; see `PoolInfo.kind`."""
    weights: int
    """Parameters of the layer."""
    active_weights: int
    """Parameters used for one token: fewer than ``weights`` if there are experts. A token costs twice as many FLOPs."""
    context_flops: int | None = None
    """FLOPs for each token that a token attends to; None: those of the model's heads, or 0 without a cache."""
    state_flops: int = 0
    """FLOPs of a token beside those of weights: for the state, and between streams."""
    kv_width: int = 0
    """Elements cached per token: keys and values of all heads, or a latent; 0 for a state, and for a layer that keeps
    nothing of a sequence, whose kind is ``full``."""
    state_width: int = 0
    """Elements kept per sequence, whatever its length: of a state, or beside the keys and values of a full layer."""
    window: int = 0
    """For a window: the number of tokens that a token attends to, itself included."""
    long_width: int = 0
    """For a window: elements cached beside it, in a pool of latents, per token of the whole sequence."""
    num_experts: int = 0
    """The number of experts that tokens are routed to; 0: none, or unknown. All experts have the same size."""
    num_active_experts: int = 0
    """The number of them that each token meets."""
    takes: tuple[str, ...] = (HIDDEN,)
    """The names of the planes that it reads. What a later layer takes crosses every border before that."""
    gives: tuple[Plane, ...] = ()
    """The planes that it makes or replaces; empty: ``hidden`` of the model's width."""
    tokens: TokenUse | None = None
    """How it uses token ids; None: it does not."""
    source: int | None = None
    """The earlier layer whose keys and values it reads in place of its own: no border may lie between the two. Its
    ``kv_width`` is then 0."""
    table_weights: int = 0
    """Those of ``weights`` in tables whose rows are looked up by token id, in the mapped file."""

    @property
    def expert_weights(self) -> int:
        """Parameters of all experts: a token leaves out those of ``num_experts - num_active_experts``."""
        unused, left_out = self.num_experts - self.num_active_experts, self.weights - self.active_weights
        return (left_out - self.table_weights) * self.num_experts // unused if unused > 0 else 0


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
    takes: tuple[str, ...] = (HIDDEN,)
    """The names of the planes that what comes after the layers reads."""


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
    """Their names in config.json, such as ``LlamaForCausalLM``; ``*``: all that no other has, and that it can read."""
    adapter: Ref[ModelAdapter]
    blocks: Mapping[str, Ref[Any]] = field(default_factory=dict)
    """Layer builders by the name of a backend. The backend defines what a builder is, and gets it, loaded, in
    `StagePlan.blocks`."""
    remedy: str = ""
    """What to do if a Ref cannot be imported."""
    parser: str = ""
    """The name of the parser for the outputs of every model of this family; empty: the chat template decides."""
