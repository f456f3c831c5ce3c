"""Predicts seconds of stages and pipelines from measured devices, links and layers' demands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from parallax_cluster.placement.device_speed import Speed, find_unmet, invert_speed, weigh_starts
from parallax_cluster.placement.paced_turns import PacedTurns
from parallax_cluster.placement.stage_step import StageStep
from parallax_core.api import LayerDemand, LinkProfile, NodeProfile, PlacementProblem


class StepSums(NamedTuple):
    """FLOPs and bytes of a step, summed over all layers before each layer; shape [num_layers + 1] each."""

    flops: list[float]
    bytes: list[float]


class Way(NamedTuple):
    """What the links of a pipeline take."""

    copies_s: tuple[float, ...]
    """Seconds that each token adds on each link."""
    all_s: float
    """Seconds of a small message from the head through all stages and back."""


PipelineKind = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]
"""The first nodes like those of its stages, the cuts, and the way of a step; see `Way`."""


class PipelineCost(NamedTuple):
    """The predicted times of a pipeline with a number of concurrent requests."""

    num_requests: int
    tokens_per_s: float
    ttft_s: float
    token_s: float
    request_s: float
    stage_s: tuple[float, ...]
    """Seconds that each stage computes for one request, if it shares its steps with others."""
    link_s: tuple[float, ...]
    """Seconds that each link is busy for one request, the first between stages 0 and 1."""


class CostModel:
    """The cost of stages and pipelines of one problem. Nodes are indices into its cluster's nodes.

    A stage's time is the longer of computing and reading (the roofline model: Williams et al., CACM 2009). The rate of
    a pipeline is the number of its requests over the time of one (Little, Operations Research 1961). `PacedTurns` has
    what prompts and answers take beside each other.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.goal = problem.goal
        self.nodes = problem.cluster.nodes
        self.layers = problem.model.layers
        self.num_layers = len(self.layers)
        self.speeds = [invert_speed(node.device, self.layers) for node in self.nodes]
        self._kinds = _find_alike(self.speeds)
        self._ways: dict[tuple[tuple[int, ...], tuple[int, ...]], Way] = {}
        self._steps: dict[tuple[int, int, int], StageStep] = {}
        self._measured: dict[tuple[PipelineKind, int], PipelineCost] = {}
        """By what the times of a pipeline depend on: those of equal machines are computed once."""
        self.num_decodes = max(self.goal.output_tokens - 1, 1)
        context = self.goal.prompt_tokens + self.goal.output_tokens / 2
        self._attended = [_attend(layer, context) for layer in self.layers]
        self.weights = _sum(float(layer.weights) for layer in self.layers)
        """Bytes of weights of all layers before each."""
        self.kept = _sum(self._measure_kept(layer) for layer in self.layers)
        """Bytes of memory that one request needs in all layers before each."""
        self._sums: dict[float, StepSums] = {}
        self._reads = _sum(float(layer.read) for layer in self.layers)
        rows = (layer.read_kv * each + layer.state for layer, each in zip(self.layers, self._attended, strict=True))
        self._rows = _sum(rows)
        """Bytes that a decode reads of its own."""
        self._prompt_kv = _sum(0.75 * layer.read_kv * _attend(layer, self.goal.prompt_tokens) for layer in self.layers)
        """Bytes of KV cache that a step with a part of a prompt reads: a part ends behind the middle on average."""
        unmet = sorted({find_unmet(layer) for layer in self.layers if layer.num_experts})
        self._experts = [(each, _sum(self._list_experts(each))) for each in unmet]
        """By share of experts that a token skips: the share, and the running sum of such expert bytes by layer."""
        self._links = {frozenset(link.ends): link for link in problem.cluster.links}
        self._hops: dict[tuple[int, int], LinkProfile] = {}

    @cached_property
    def legal(self) -> list[int]:
        """The first layers that a stage may have, and the end of the last."""
        return [0, *(cut for cut in range(1, self.num_layers) if self.problem.model.cross(cut)), self.num_layers]

    @cached_property
    def _starts(self) -> list[float]:
        """The fixed times of all layers before each, as multiples of that of a layer without experts."""
        return _sum(map(weigh_starts, self.layers))

    @cached_property
    def _head(self) -> int | None:
        """The node of the head; None: it is at a site, or beside the first stages."""
        return next((rank for rank, node in enumerate(self.nodes) if node.name == self.problem.cluster.head), None)

    @cached_property
    def _legal(self) -> frozenset[int]:
        return frozenset(self.legal)

    @cached_property
    def has_uneven_borders(self) -> bool:
        """Whether more crosses some borders than others."""
        return len(set(map(self.problem.model.cross, self.legal[1:-1]))) > 1

    @cached_property
    def _gaps(self) -> frozenset[tuple[int, int]]:
        """The pairs (node, other) in which the node does not reach the other."""
        indices = {node.name: index for index, node in enumerate(self.nodes)}
        pairs = self.problem.cluster.unreachable
        return frozenset((indices[one], indices[other]) for one, other in pairs if {one, other} <= indices.keys())

    @property
    def has_gaps(self) -> bool:
        """Whether some nodes cannot connect to others."""
        return bool(self._gaps)

    def reaches(self, one: int, other: int) -> bool:
        """Return whether a node can connect to another one, and so have the stage before it."""
        return (one, other) not in self._gaps

    def is_linked(self, order: Sequence[int]) -> bool:
        """Return whether each node reaches the next."""
        return not self._gaps or self._gaps.isdisjoint(pairwise(order))

    def _measure_kept(self, layer: LayerDemand) -> float:
        kept = layer.kv * _attend(layer, self.goal.reserved_tokens) + layer.state
        return kept / self.goal.memory_fraction

    def _list_experts(self, unmet: float) -> Iterator[float]:
        """Yield the expert bytes of each layer whose unmet share is ``unmet``, and 0 for other layers."""
        for layer in self.layers:
            yield float(layer.experts) if layer.num_experts and find_unmet(layer) == unmet else 0.0

    def count_fitting(self, node: int, start: int, stop: int) -> float:
        """Return the number of requests whose KV cache fits beside the layers; below 1 if not even they fit.

        -1 if no stage may have just these layers.
        """
        if start not in self._legal or stop not in self._legal:
            return -1.0
        free = self.speeds[node].memory - self.measure_weights(start, stop)
        kept = self.kept[stop] - self.kept[start]
        return free // kept if kept > 0 else (inf if free >= 0 else -1.0)

    def snap(self, cut: int) -> int:
        """Return the last border up to ``cut`` at which a stage may end."""
        return self.legal[bisect_right(self.legal, cut) - 1]

    def measure_weights(self, start: int, stop: int) -> float:
        """Return the bytes of the weights of layers; what the first and the last share counts once."""
        shared = self.problem.model.shared if stop - start == self.num_layers else 0
        return self.weights[stop] - self.weights[start] - shared

    def sum_decode(self, batch: float) -> StepSums:
        """Return the sums of a step of ``batch`` decodes, each of a sequence of its own."""
        if batch not in self._sums:
            used = [_share_experts(layer, batch) for layer in self.layers]
            flops = (
                batch * (layer.flops + layer.draw_flops + layer.context_flops * attended)
                for layer, attended in zip(self.layers, self._attended, strict=True)
            )
            read = (
                layer.read + layer.experts * share + batch * (layer.read_kv * attended + layer.state)
                for layer, share, attended in zip(self.layers, used, self._attended, strict=True)
            )
            self._sums[batch] = StepSums(_sum(flops), _sum(read))
        return self._sums[batch]

    @cached_property
    def prefill(self) -> StepSums:
        """The sums of the prefill of one prompt; a token attends to half of the prompt on average."""
        num = self.goal.prompt_tokens
        flops = (
            num * (layer.flops + layer.context_flops * _attend(layer, num / 2)) + layer.draw_flops
            for layer in self.layers
        )
        read = (layer.read + layer.experts * _share_experts(layer, num) + num * layer.read_kv for layer in self.layers)
        return StepSums(_sum(flops), _sum(read))

    def measure_step(self, node: int, start: int, stop: int, sums: StepSums) -> float:
        """Return the seconds of a step with the layers from ``start`` to ``stop``."""
        speed = self.speeds[node]
        compute_s = (sums.flops[stop] - sums.flops[start]) * speed.flop_s
        read_s = (sums.bytes[stop] - sums.bytes[start]) * speed.byte_s
        return max(compute_s, read_s) + self.measure_fixed(node, start, stop)

    def measure_fixed(self, node: int, start: int, stop: int) -> float:
        """Return the seconds that a step with these layers takes besides reading and computing."""
        speed = self.speeds[node]
        return speed.step_s + speed.layer_s * (self._starts[stop] - self._starts[start])

    def price_stage(self, num_stages: int, num_requests: int) -> Callable[[int, int, int], float]:
        """Return a function of node, start and stop: the seconds that a stage computes for one request."""
        batch = count_batch(num_stages, num_requests)
        decode, prefill, per_batch = self.sum_decode(batch), self.prefill, self.num_decodes / batch
        speeds, starts = self.speeds, self._starts

        def price(node: int, start: int, stop: int) -> float:  # `measure_step` twice, written out: most time goes here
            speed = speeds[node]
            compute_s = (prefill.flops[stop] - prefill.flops[start]) * speed.flop_s
            read_s = (prefill.bytes[stop] - prefill.bytes[start]) * speed.byte_s
            each_compute_s = (decode.flops[stop] - decode.flops[start]) * speed.flop_s
            each_read_s = (decode.bytes[stop] - decode.bytes[start]) * speed.byte_s
            prefill_s = max(compute_s, read_s)
            decode_s = max(each_compute_s, each_read_s)
            fixed_s = speed.step_s + speed.layer_s * (starts[stop] - starts[start])
            return prefill_s + fixed_s + per_batch * (decode_s + fixed_s)

        return price

    def measure_pipeline(self, order: Sequence[int], cuts: Sequence[int], num_requests: int) -> PipelineCost:
        """Return the times of a pipeline.

        Args:
            order: the nodes of its stages.
            cuts: the first layer of each stage, and the number of layers; shape [stages + 1].
            num_requests: at the same time, at least 1.
        """
        key = self.describe_kind(order, cuts), num_requests
        if key not in self._measured:
            self._measured[key] = self._measure_kinds(*key)
        return self._measured[key]

    def describe_kind(self, order: Sequence[int], cuts: Sequence[int]) -> PipelineKind:
        """Return what the times of a pipeline depend on, but its requests."""
        kinds = tuple(self._kinds[node] for node in order)
        return kinds, tuple(cuts), *self._describe_way(tuple(order), tuple(cuts[1:-1]))

    def _measure_kinds(self, kind: PipelineKind, num_requests: int) -> PipelineCost:
        """Return the times of a pipeline of nodes like these, with links like those that there are."""
        (kinds, cuts, copies_s, ways_s), goal = kind, self.goal
        stages = [self.describe_steps(node, *cut) for node, cut in zip(kinds, pairwise(cuts), strict=True)]
        lengths = goal.prompt_tokens, goal.output_tokens - 1
        times = PacedTurns(stages, ways_s, copies_s, num_requests, lengths).measure()
        link_s = tuple((goal.prompt_tokens + self.num_decodes) * copy_s for copy_s in copies_s)
        request_s = max(times.request_s, num_requests * max(link_s, default=0.0))
        token_s = (request_s - times.ttft_s) / self.num_decodes
        tokens_per_s = num_requests / request_s * goal.output_tokens
        return PipelineCost(num_requests, tokens_per_s, times.ttft_s, token_s, request_s, times.stage_s, link_s)

    def describe_steps(self, node: int, start: int, stop: int) -> StageStep:
        """Return the seconds of the steps of a stage, in terms of what they compute."""
        key = self._kinds[node], start, stop
        if key not in self._steps:
            self._steps[key] = self._describe_steps(*key)
        return self._steps[key]

    def _describe_steps(self, node: int, start: int, stop: int) -> StageStep:
        speed, prompt, decode = self.speeds[node], self.prefill, self.sum_decode(1.0)
        num_prompt = self.goal.prompt_tokens
        return StageStep(
            decode_s=(decode.flops[stop] - decode.flops[start]) * speed.flop_s,
            prompt_s=(prompt.flops[stop] - prompt.flops[start]) * speed.flop_s / num_prompt,
            read_s=(self._reads[stop] - self._reads[start]) * speed.byte_s,
            row_s=(self._rows[stop] - self._rows[start]) * speed.byte_s,
            prompt_row_s=(self._prompt_kv[stop] - self._prompt_kv[start]) * speed.byte_s,
            experts=tuple((unmet, (sums[stop] - sums[start]) * speed.byte_s) for unmet, sums in self._experts),
            fixed_s=self.measure_fixed(node, start, stop),
        )

    def _describe_way(self, order: tuple[int, ...], cuts: tuple[int, ...]) -> Way:
        """Return the way of a step through nodes in order, over the borders before these layers."""
        crossed = tuple(map(self.problem.model.cross, cuts))
        if (order, crossed) not in self._ways:
            links = [self.find_link(*ends) for ends in pairwise(order)]
            copies_s = tuple(size / link.bandwidth for size, link in zip(crossed, links, strict=True))
            self._ways[order, crossed] = Way(copies_s, self._measure_ways(order, links))
        return self._ways[order, crossed]

    def measure_crossing(self, one: int, other: int, cut: int) -> float:
        """Return the seconds that one request takes a link, if a stage of ``other`` begins with the layer ``cut``."""
        sent = self.problem.model.cross(cut) * (self.goal.prompt_tokens + self.num_decodes)
        return sent / self.find_link(one, other).bandwidth

    def _measure_ways(self, order: Sequence[int], links: Sequence[LinkProfile]) -> float:
        """Return the seconds of a small message from the head through all stages and back to the head."""
        ways_s = sum(link.round_trip_s for link in links) / 2
        if self.problem.cluster.head:
            return ways_s + sum(self.find_head_link(node).round_trip_s for node in (order[0], order[-1])) / 2
        return ways_s + self.find_link(order[-1], order[0]).round_trip_s / 2 if len(order) > 1 else 0.0

    def find_link(self, one: int, other: int) -> LinkProfile:
        """Return the link between two nodes."""
        ends = (one, other) if one < other else (other, one)
        if ends not in self._hops:
            self._hops[ends] = self._find_link(self.nodes[one], self.nodes[other])
        return self._hops[ends]

    def find_head_link(self, node: int) -> LinkProfile:
        """Return the link between the head and a node."""
        head, profile = self.problem.cluster.head, self.nodes[node]
        if head == profile.name:
            return LinkProfile(ends=(head, head), round_trip_s=0.0, bandwidth=inf)
        if self._head is not None:
            return self.find_link(self._head, node)
        named = self._links.get(frozenset((head, profile.name)))
        return named or self._find_site_link(head, profile.site)

    def _find_link(self, one: NodeProfile, other: NodeProfile) -> LinkProfile:
        """Return the link that names two nodes, or one and the site of the other (the slower of two), or both sites."""
        if named := self._links.get(frozenset((one.name, other.name))):
            return named
        mixed = (self._links.get(frozenset(ends)) for ends in ((one.name, other.site), (one.site, other.name)))
        slower = max(filter(None, mixed), key=lambda link: (link.round_trip_s, -link.bandwidth), default=None)
        return slower or self._find_site_link(one.site, other.site)

    def _find_site_link(self, one: str, other: str) -> LinkProfile:
        return self._links.get(frozenset((one, other)), self.problem.cluster.default_link)


def count_batch(num_stages: int, num_requests: int) -> float:
    """Return the mean number of sequences in a step, if all decode, and each stage has one."""
    return num_requests / min(num_stages, num_requests)


def _find_alike(speeds: Sequence[Speed]) -> list[int]:
    """Return the first node that is as fast, for each."""
    first: dict[Speed, int] = {}
    return [first.setdefault(speed._replace(memory=0.0), node) for node, speed in enumerate(speeds)]


def _attend(layer: LayerDemand, context: float) -> float:
    return min(context, layer.window) if layer.window else context


def _share_experts(layer: LayerDemand, num_tokens: float) -> float:
    """Return the expected share of the experts that a step reads, if each token meets random ones.

    That is ``1 - (1 - active / all) ** tokens``.
    """
    return 1.0 - float(find_unmet(layer) ** num_tokens) if layer.num_experts else 0.0


def _sum(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
