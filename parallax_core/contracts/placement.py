"""Placement: the nodes of each pipeline, in order, with the layers of each.

A placement policy gets a `PlacementProblem` and an `Estimator` and returns a `Placement`. All values are of seconds,
bytes, tokens and FLOPs, without prefixes. docs/explanation/placement.md has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

from parallax_core.contracts.stage import LayerRange

Objective = Literal["throughput", "latency"]
Resource = Literal["compute", "bandwidth", "overhead", "link", "latency", "concurrency", "memory", "limits"]
"""What keeps a pipeline from answering more tokens per second: the FLOPs, the memory bandwidth or the fixed overhead of
a node, the bandwidth of a link, the time that a token needs for its way through all stages, the number of concurrent
requests, the memory for their KV cache, or the limits of the goal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceProfile:
    """The speed and the free memory of a device, as measured with the backend that will use it."""

    memory: int
    """Bytes that are free for weights, KV cache and activations."""
    flops: float
    """FLOPs per second."""
    bandwidth: float
    """Bytes of memory read per second."""
    flops_efficiency: float = 1.0
    """The share of ``flops`` that layers reach; 1 if ``flops`` was measured with layers."""
    bandwidth_efficiency: float = 1.0
    """The share of ``bandwidth`` that layers reach."""
    step_s: float = 0.0
    """Seconds that a step takes besides its layers."""
    layer_s: float = 0.0
    """Seconds that each layer of a step takes besides reading and computing, such as for starting kernels."""
    expert_layer_s: float = 0.0
    """The same of a layer with experts; 0: not measured."""
    forms: tuple[tuple[float, float, float], ...] = ()
    """What was measured with weights in several forms; see `DeviceSpeed.forms`. They count by the bytes of a number."""
    name: str = ""
    """The product, such as ``RTX4090``."""
    total_memory: int = 0
    """Bytes of all its memory; 0: unknown."""
    is_measured: bool = False
    """Whether the speed was measured on this device; otherwise it is typical of the product, or a user gave it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeProfile:
    """A node that could hold a stage."""

    name: str
    device: DeviceProfile
    site: str = ""
    """The network the node is in; see `LinkProfile`."""
    cached_layers: LayerRange | None = None
    """The layers whose weights are on its disk."""
    loaded_layers: LayerRange | None = None
    """The layers with weights in its memory; None: those of the current placement."""
    disk_bandwidth: float = 1e9
    """Bytes per second when weights are loaded from the disk."""
    download_bandwidth: float = 50e6
    """Bytes per second when weights are fetched from elsewhere."""
    disk_free: int = 0
    """Bytes that are free for models on its disk; 0: unknown."""
    leases: bool = False
    """Whether several pipelines may use it, each through a lease."""
    fixed_layers: LayerRange | None = None
    """The only layers that it runs; None: it runs any."""
    labels: tuple[tuple[str, str], ...] = ()
    """The keys and values of its labels, such as ``("room", "attic")``; they limit which nodes a policy gets."""
    max_context: int = 0
    """The most tokens of a request on it; 0: as many as the model takes. It limits which nodes a policy gets, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkProfile:
    """The connection of two nodes, of two sites, or of a site's nodes with each other."""

    ends: tuple[str, str]
    """Names of nodes or sites, in any order."""
    round_trip_s: float
    """Seconds for a small message and its answer."""
    bandwidth: float
    """Bytes per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterProfile:
    """The nodes and the network between them."""

    nodes: tuple[NodeProfile, ...]
    links: tuple[LinkProfile, ...] = ()
    """A link of two nodes counts before one of their sites."""
    default_link: LinkProfile = LinkProfile(ends=("", ""), round_trip_s=0.001, bandwidth=125e6)
    """The connection of two nodes that no link names."""
    head: str = ""
    """The node or site of the head; empty: beside the first stage of each pipeline."""
    unreachable: frozenset[tuple[str, str]] = frozenset()
    """Pairs of nodes: the first cannot connect to the second, and so cannot have the stage before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerDemand:
    """What one layer takes. The first has the embedding in it, and the last the final norm and the output head."""

    weights: int
    """Bytes of memory for all weights."""
    read: int
    """Bytes of the weights that every step reads, whatever its tokens: all but the experts."""
    flops: int
    """FLOPs per token, without those that grow with the context."""
    draw_flops: int = 0
    """FLOPs per drawn token: of the output head, which skips all tokens of a prompt but the last."""
    experts: int = 0
    """Bytes of all experts."""
    num_experts: int = 0
    num_active_experts: int = 0
    """The number of experts that a token meets."""
    context_flops: int = 0
    """FLOPs per token for each token it attends to."""
    kv: int = 0
    """Bytes of the KV cache per token."""
    borrowed_kv: int = 0
    """Bytes per token of the KV cache of an earlier layer, which it reads and does not keep."""
    state: int = 0
    """Bytes of state per sequence."""
    window: int = 0
    """The most tokens that a token attends to; 0: all."""

    @property
    def read_kv(self) -> int:
        """Bytes of KV cache, its own and borrowed, that it reads per token attended to."""
        return self.kv + self.borrowed_kv


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDemand:
    """What a model takes."""

    layers: tuple[LayerDemand, ...]
    hidden: int
    """Bytes per token that go from stage to stage, at most."""
    shared: int = 0
    """Bytes of weights in both the first and the last layer, which a stage with both holds once: a tied embedding."""
    borders: tuple[int, ...] = ()
    """Bytes per token that cross each border between two layers, the first between layers 0 and 1; 0: no stage may
    begin there. Empty: ``hidden`` at every one."""

    def cross(self, layer: int) -> int:
        """Return the bytes per token that cross the border before ``layer``, not the first; 0: it must not be there."""
        return self.borders[layer - 1] if self.borders else self.hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingGoal:
    """The load to serve, and what is best.

    Raises:
        ValueError: if a number is not positive; the message names it.
    """

    prompt_tokens: int = 512
    output_tokens: int = 256
    context_tokens: int = 0
    """The tokens of KV cache to keep for each request; 0: its prompt and its output."""
    concurrency: int = 8
    """The number of requests at the same time, of all pipelines together."""
    objective: Objective = "throughput"
    """``throughput``: the most tokens per second; ``latency``: the least mean time of a request, waiting included."""
    max_ttft_s: float = inf
    """The most seconds to the first token."""
    max_token_s: float = inf
    """The most seconds per token after the first."""
    min_tokens_per_s: float = 0.0
    """The least output tokens per second of all requests together, for ``latency``."""
    memory_fraction: float = 0.5
    """The share of the memory left by the weights that the KV cache may take."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "concurrency", "max_ttft_s", "max_token_s", "memory_fraction"):
            if not (value := getattr(self, name)) > 0:
                message = f"{name} is {value}; it must be more than 0"
                raise ValueError(message)

    @property
    def reserved_tokens(self) -> int:
        """The tokens of KV cache that are kept for each request."""
        return self.context_tokens or self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StageLease:
    """What a stage has of a node that it shares with stages of other pipelines; see `Leasing`."""

    number: int
    """Counts the leases of the node, from 0."""
    holds: LayerRange
    """The layers that the node holds, the same for all its leases."""
    memory_share: float
    """The share of the node's memory for KV pages, above 0; those of all its leases sum to at most 1."""


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """The layers that a pipeline has of a node."""

    node: str
    layers: LayerRange
    lease: StageLease | None = None
    """None: the node is in this pipeline only, and holds these layers."""

    @property
    def holds(self) -> LayerRange:
        """The layers that the node holds."""
        return self.lease.holds if self.lease is not None else self.layers


@dataclass(frozen=True, slots=True)
class Placement:
    """The pipelines of a model. Each has all layers, in order; a node in several of them has a lease for each."""

    pipelines: tuple[tuple[PlacedStage, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementProblem:
    """A model to place on a cluster."""

    cluster: ClusterProfile
    model: ModelDemand
    goal: ServingGoal = ServingGoal()
    current: Placement | None = None
    """The placement that serves now; a new one must be worth the weights to load and the requests to move."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineEstimate:
    """The predicted speed of one pipeline."""

    max_requests: int
    """The most concurrent requests that its memory and the limits of the goal allow."""
    num_requests: int
    """The concurrent requests it gets, of those of the goal."""
    tokens_per_s: float
    """Output tokens per second of these requests together."""
    ttft_s: float
    """Mean seconds to the first token, beside the other requests."""
    token_s: float
    """Seconds per token of one request after its first."""
    request_s: float
    """Seconds from the arrival of a request to its last token."""
    limit: Resource
    """What it would need more of, to be faster."""
    limit_at: str = ""
    """The node or link that ``limit`` is about."""
    busy: tuple[float, ...] = ()
    """The share of the time that each stage computes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The predicted speed of a placement."""

    pipelines: tuple[PipelineEstimate, ...]
    num_requests: int
    """The requests served at the same time; fewer than those of the goal if memory or limits allow no more, or if all
    would take longer with more."""
    tokens_per_s: float
    """Output tokens per second."""
    ttft_s: float
    """Mean seconds to the first token."""
    token_s: float
    """Mean seconds per token of one request after its first."""
    request_s: float
    """Mean seconds of a request that is served."""
    response_s: float = 0.0
    """Mean seconds of a request with its waiting, if fewer requests are served at the same time than there are."""


class Estimator(Protocol):
    """Predicts the speed of placements of one `PlacementProblem`."""

    def estimate(self, placement: Placement) -> Estimate:
        """Return the predicted speed.

        Raises:
            ValueError: if ``placement`` is not valid for the problem; the message names the node or the layers.
        """


class PlacementPolicy(Protocol):
    """Places a model on a cluster."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return a valid placement; one without pipelines if the model does not fit.

        It is valid if every pipeline has all layers in order, every stage at least one, no stage begins at a border of
        0 bytes (`ModelDemand.borders`), no node is named twice without leases, every node has memory for its layers and
        for the KV cache of one request of each pipeline, and no stage goes on on a node that its own cannot reach
        (`ClusterProfile.unreachable`).
        """
