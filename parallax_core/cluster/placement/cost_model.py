"""Predicts the seconds of a stage and of a pipeline, from measured devices and links and the demand of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from parallax_core.contracts.placement import (
    LayerDemand,
    LinkProfile,
    NodeProfile,
    PlacementProblem,
)


class StepSums(NamedTuple):
    """FLOPs and bytes of a step, summed over all layers before each layer; shape [num_layers + 1] each."""

    flops: list[float]
    bytes: list[float]


class Speed(NamedTuple):
    """The inverse speed of a node."""

    flop_s: float
    byte_s: float
    step_s: float
    layer_s: float
    memory: float


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


class Turn:
    """A turn in which every request is in one step of a pipeline: most decode, and now and then one brings its prompt.

    A request has as many turns as it has tokens. With B requests of O tokens, no prompt is in a turn with the
    probability (1 - 1/O)**B. Steps do not overtake each other: what follows a prompt waits for it at every stage.
    """

    def __init__(self, num_requests: int, num_steps: float, num_tokens: int) -> None:
        """Divide requests among steps; each request has a number of tokens."""
        self.count = num_tokens
        self._num_steps = num_steps
        self._calm = (1 - 1 / num_tokens) ** num_requests
        num_prefills = num_requests / num_tokens / (1 - self._calm)
        self._num_long = min(num_prefills, num_steps)
        self.prefills_per_step = max(1.0, num_prefills / num_steps)
        """Prompts in a step that has any."""

    def average(self, short_s: float, long_s: float) -> float:
        """Return the mean of what a turn without and with prompts takes."""
        return self._calm * short_s + (1 - self._calm) * long_s

    def sum_busy(self, decode_s: float, mixed_s: float) -> tuple[float, float]:
        """Return the seconds that a stage computes in a turn without and in a turn with prompts."""
        return self._num_steps * decode_s, self._num_long * mixed_s + (self._num_steps - self._num_long) * decode_s

    def measure(self, decode_s: Sequence[float], mixed_s: Sequence[float], ways_s: float) -> float:
        """Return the seconds of a turn: the way of a step through all stages, or the busiest stage, if that is longer.

        Args:
            decode_s: the seconds of a step of decodes on each stage.
            mixed_s: those of a step with prompts; the same as ``decode_s`` for a turn without.
            ways_s: the seconds on links.
        """
        pairs = list(zip(decode_s, mixed_s, strict=True))
        further_s = max(0.0, self._num_long - 1) * max(mixed - decode for decode, mixed in pairs)
        return max(sum(mixed_s) + ways_s + further_s, *(self.sum_busy(*pair)[1] for pair in pairs))


class CostModel:
    """The cost of stages and pipelines of one problem. Nodes are indices into its cluster's nodes.

    A stage's time is the longer of computing and reading (the roofline model: Williams et al., CACM 2009). The rate of
    a pipeline is the number of its requests over the time of one (Little, Operations Research 1961); see `Turn`.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.goal = problem.goal
        self.nodes = problem.cluster.nodes
        self.layers = problem.model.layers
        self.num_layers = len(self.layers)
        self.speeds = [_invert(node) for node in self.nodes]
        self.num_decodes = max(self.goal.output_tokens - 1, 1)
        context = self.goal.prompt_tokens + self.goal.output_tokens / 2
        self._attended = [_attend(layer, context) for layer in self.layers]
        self.weights = _sum(float(layer.weights) for layer in self.layers)
        """Bytes of weights of all layers before each."""
        kept = ((layer.kv * _attend(layer, self.goal.reserved_tokens) + layer.state) for layer in self.layers)
        self.kept = _sum(each / self.goal.memory_fraction for each in kept)
        """Bytes of memory that one request needs in all layers before each."""
        self._sums: dict[float, StepSums] = {}
        self._links = {frozenset(link.ends): link for link in problem.cluster.links}
        self._hops: dict[tuple[int, int], LinkProfile] = {}

    def count_fitting(self, node: int, start: int, stop: int) -> float:
        """Return the number of requests whose KV cache fits beside the layers; below 1 if not even they fit."""
        free = self.speeds[node].memory - (self.weights[stop] - self.weights[start])
        if stop - start == self.num_layers:
            free += self.problem.model.shared
        kept = self.kept[stop] - self.kept[start]
        return free // kept if kept > 0 else (inf if free >= 0 else -1.0)

    def sum_decode(self, batch: float) -> StepSums:
        """Return the sums of a step of ``batch`` decodes, each of a sequence of its own."""
        if batch not in self._sums:
            used = [_share_experts(layer, batch) for layer in self.layers]
            flops = (
                batch * (layer.flops + layer.draw_flops + layer.context_flops * attended)
                for layer, attended in zip(self.layers, self._attended, strict=True)
            )
            read = (
                layer.read + layer.experts * share + batch * (layer.kv * attended + layer.state)
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
        read = (layer.read + layer.experts * _share_experts(layer, num) + num * layer.kv for layer in self.layers)
        return StepSums(_sum(flops), _sum(read))

    def measure_step(self, node: int, start: int, stop: int, sums: StepSums) -> float:
        """Return the seconds of a step with the layers from ``start`` to ``stop``."""
        speed = self.speeds[node]
        compute_s = (sums.flops[stop] - sums.flops[start]) * speed.flop_s
        read_s = (sums.bytes[stop] - sums.bytes[start]) * speed.byte_s
        return max(compute_s, read_s) + speed.step_s + speed.layer_s * (stop - start)

    def price_stage(self, num_stages: int, num_requests: int) -> Callable[[int, int, int], float]:
        """Return a function of node, start and stop: the seconds that a stage computes for one request."""
        batch = count_batch(num_stages, num_requests)
        decode, prefill, per_batch, speeds = self.sum_decode(batch), self.prefill, self.num_decodes / batch, self.speeds

        def price(node: int, start: int, stop: int) -> float:  # `measure_step` twice, written out: most time goes here
            speed = speeds[node]
            compute_s = (prefill.flops[stop] - prefill.flops[start]) * speed.flop_s
            read_s = (prefill.bytes[stop] - prefill.bytes[start]) * speed.byte_s
            each_compute_s = (decode.flops[stop] - decode.flops[start]) * speed.flop_s
            each_read_s = (decode.bytes[stop] - decode.bytes[start]) * speed.byte_s
            prefill_s = max(compute_s, read_s)
            decode_s = max(each_compute_s, each_read_s)
            fixed_s = speed.step_s + speed.layer_s * (stop - start)
            return prefill_s + fixed_s + per_batch * (decode_s + fixed_s)

        return price

    def measure_pipeline(self, order: Sequence[int], cuts: Sequence[int], num_requests: int) -> PipelineCost:
        """Return the times of a pipeline.

        Args:
            order: the nodes of its stages.
            cuts: the first layer of each stage, and the number of layers; shape [stages + 1].
            num_requests: at the same time, at least 1.
        """
        stages = list(zip(order, pairwise(cuts), strict=True))
        batch, goal = count_batch(len(order), num_requests), self.goal
        turn = Turn(num_requests, num_requests / batch, goal.output_tokens)
        decode, mixed = self.sum_decode(batch), self._mix(batch, turn.prefills_per_step)
        decode_s = [self.measure_step(node, *cut, decode) for node, cut in stages]
        mixed_s = [
            max(self.measure_step(node, *cut, mixed), each) for (node, cut), each in zip(stages, decode_s, strict=True)
        ]
        links = [self.find_link(*ends) for ends in pairwise(order)]
        hidden, ways_s = self.problem.model.hidden, self._measure_ways(order, links)
        copies_s = [hidden / link.bandwidth for link in links]
        prefill_s = sum(self.measure_step(node, *cut, self.prefill) for node, cut in stages)
        ttft_s = prefill_s + ways_s + goal.prompt_tokens * sum(copies_s)
        link_s = [(goal.prompt_tokens + self.num_decodes) * copy_s for copy_s in copies_s]
        short_s = turn.measure(decode_s, decode_s, ways_s + batch * sum(copies_s))
        long_s = turn.measure(decode_s, mixed_s, ways_s + goal.prompt_tokens * turn.prefills_per_step * sum(copies_s))
        request_s = max(turn.count * turn.average(short_s, long_s), num_requests * max(link_s, default=0.0))
        stage_s = [
            turn.count * turn.average(*turn.sum_busy(*pair)) / num_requests
            for pair in zip(decode_s, mixed_s, strict=True)
        ]
        token_s = (request_s - ttft_s) / self.num_decodes
        tokens_per_s = num_requests / request_s * goal.output_tokens
        return PipelineCost(num_requests, tokens_per_s, ttft_s, token_s, request_s, tuple(stage_s), tuple(link_s))

    def _mix(self, batch: float, num_prefills: float) -> StepSums:
        """Return the sums of a step of ``batch`` sequences, some of them with their prompts; weights are read once."""
        decode, prefill, share = self.sum_decode(batch), self.prefill, min(1.0, num_prefills / batch)
        if share == 1.0 and num_prefills == 1.0:
            return prefill
        flops = [
            (1 - share) * one + num_prefills * other for one, other in zip(decode.flops, prefill.flops, strict=True)
        ]
        return StepSums(flops, [max(pair) for pair in zip(decode.bytes, prefill.bytes, strict=True)])

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
            first, second = self.nodes[one], self.nodes[other]
            named = self._links.get(frozenset((first.name, second.name)))
            self._hops[ends] = named or self._find_site_link(first.site, second.site)
        return self._hops[ends]

    def find_head_link(self, node: int) -> LinkProfile:
        """Return the link between the head and a node."""
        head, profile = self.problem.cluster.head, self.nodes[node]
        if head == profile.name:
            return LinkProfile(ends=(head, head), round_trip_s=0.0, bandwidth=inf)
        named = self._links.get(frozenset((head, profile.name)))
        return named or self._find_site_link(head, profile.site)

    def _find_site_link(self, one: str, other: str) -> LinkProfile:
        return self._links.get(frozenset((one, other)), self.problem.cluster.default_link)


def count_batch(num_stages: int, num_requests: int) -> float:
    """Return the mean number of sequences in a step: several stages have one step more in flight than there are."""
    num_steps = 1 if num_stages == 1 else min(num_requests, num_stages + 1)
    return num_requests / num_steps


def _invert(node: NodeProfile) -> Speed:
    device = node.device
    flops, bandwidth = device.flops * device.flops_efficiency, device.bandwidth * device.bandwidth_efficiency
    return Speed(1 / flops, 1 / bandwidth, device.step_s, device.layer_s, float(device.memory))


def _attend(layer: LayerDemand, context: float) -> float:
    return min(context, layer.window) if layer.window else context


def _share_experts(layer: LayerDemand, num_tokens: float) -> float:
    """Return the expected share of the experts that a step reads, if each token meets random ones.

    That is ``1 - (1 - active / all) ** tokens``.
    """
    if not layer.num_experts:
        return 0.0
    unused: float = (1.0 - layer.num_active_experts / layer.num_experts) ** num_tokens
    return 1.0 - unused


def _sum(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
