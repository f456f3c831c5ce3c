"""The engine of a pipeline over variants of a model; it remembers the variants of each answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from parallax_cluster.layer_plan import Stages
from parallax_cluster.model_variants import ModelVariants, Weights, describe_weights
from parallax_core.api import Delta, Request, RequestId, holder_of
from parallax_core.api.deployment import ReplicaStatus
from parallax_core.node.pipeline.engine import PipelineEngine

MOST_ANSWERS = 2**16
"""The most answers whose weights are remembered."""


class AnswerWeights:
    """By which weights the unfinished answers of a model were computed, in order; all its pipelines share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[RequestId, tuple[Weights, ...]] = OrderedDict()

    def note(self, name: RequestId, weights: Weights) -> None:
        """Note that an answer has a further token, by these weights."""
        known = self._known.get(name, ())
        if known and known[-1] == weights:
            return
        self._known[name] = (*known, weights)
        if len(self._known) > MOST_ANSWERS:
            self._known.popitem(last=False)

    def take(self, name: RequestId) -> tuple[Weights, ...]:
        """Forget an answer that has ended, and return by what it was computed."""
        return self._known.pop(name, ())

    def may_go_on(self, name: RequestId, weights: Weights) -> bool:
        """Return whether an answer was computed by the same weights so far; of one without a token, True."""
        known = self._known.get(name, ())
        return not known or known[-1] == weights


class VariantEngine(PipelineEngine):
    """A `PipelineEngine` that continues an answer only by the weights it began with, or says that it did not."""

    _variants: ModelVariants
    _answers: AnswerWeights
    _weights: Weights = ()
    """Of the stages that were opened last."""

    def follow(self, variants: ModelVariants, answers: AnswerWeights) -> None:
        """Serve with nodes that load ``variants``, and share ``answers``; call it before the start."""
        self._variants, self._answers = variants, answers

    def note_opened(self, stages: Stages) -> None:
        """Note the stages that were opened; answers that began by other weights end, unless those may be mixed."""
        self._weights = self._variants.trace(stages)
        begun = [name for name, stream in self._streams.items() if stream.has_begun]
        broken = [name for name in begun if not self._answers.may_go_on(name, self._weights)]
        if self._variants.goes_on or not broken:
            return
        for name in broken:
            self._cancel(name)
        message = "no other machine has the weights that this answer began with"
        self._end_streams("error", f"{message}: it would go on by {describe_weights(self._weights)}", broken)

    def can_resume(self, request: Request) -> bool:
        """Return whether it continues an answer: by the same weights, unless these may be mixed."""
        return self._variants.goes_on or self._answers.may_go_on(request.id, self._weights)

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status, with what each stage has loaded; see `PipelineEngine.describe`."""
        [status] = super().describe()
        stages = (replace(each, weights=self._variants.show(holder_of(each.node))) for each in status.stages)
        return (replace(status, stages=tuple(stages)),)

    def _deliver(self, deltas: Iterable[tuple[RequestId, Delta]]) -> None:
        super()._deliver([(name, self._note(name, delta)) for name, delta in deltas])

    def _note(self, name: RequestId, delta: Delta) -> Delta:
        """Note a delta of an answer, and add to its end by which weights it was computed, if by several."""
        if delta.tokens:
            self._answers.note(name, self._weights)
        finish = delta.finish
        if finish is None or finish.reason not in {"stop", "length"}:  # else it may go on in another pipeline
            return delta
        known = self._answers.take(name)
        if len(set(known)) <= 1:
            return delta
        message = (
            f"computed by several weights, since a machine was lost: {', then '.join(map(describe_weights, known))}"
        )
        return replace(delta, finish=replace(finish, message=message))
