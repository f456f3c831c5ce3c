"""Runs the rows of a Step message on a stage, and checks its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.contracts.model import HIDDEN
from parallax_core.contracts.stage import MaskSource, Stage, StageBatch, StageInfo, StageOutput, StageResult
from parallax_core.contracts.tensor import Tensor, TensorSpec
from parallax_core.node.executor.compatibility import can_take, show_specs
from parallax_core.wire.messages import Step

T = TypeVar("T")


def begin_rows(stage: Stage, step: Step, masks: MaskSource | None = None) -> StageOutput:
    """Submit the rows of ``step``, with its hidden states in the dtypes the stage takes, and the masks of its draws.

    Raises:
        BackendFailed: if the hidden states do not fit the stage, or the computation failed.
        StageLost: if the backend says so.
    """
    batch = StageBatch(step.rows, _fit(stage.info, step), step.embeddings, step.step, masks)
    return _ask_model(lambda: stage.step(batch))


def finish_rows(info: StageInfo, step: Step, output: StageOutput) -> StageResult:
    """Wait for the result of ``step``, and check it.

    Raises:
        BackendFailed: if the computation failed.
        StageLost: if the backend says so, or the result is not what was asked for: the stage has gone on all the same.
    """
    result = _ask_model(output.wait)
    _check_result(info, step, result)
    return result


def is_last(info: StageInfo) -> bool:
    """Whether the stage ends with the last layer of the model."""
    return info.layers.stop == info.num_layers


def _ask_model(call: Callable[[], T]) -> T:
    try:
        return call()
    except StageLost:
        raise
    except BackendFailed as error:
        raise BackendFailed(f"the model failed on this step: {error.message}", error.hint, error.sequences) from error
    except Exception as error:
        raise BackendFailed(f"the model failed on this step: {type(error).__name__}: {error}") from error


def _fit(info: StageInfo, step: Step) -> tuple[Tensor, ...]:
    """Return the hidden states of a step in the dtypes the stage takes."""
    if _are_of(step.hidden, info.takes):
        return step.hidden
    given = _describe(step.hidden, info.takes)
    if len(given) != len(info.takes) or not all(map(can_take, given, info.takes)):
        raise BackendFailed(f"a stage that takes {show_specs(info.takes)} was given {show_specs(given)}")
    from parallax_core.node.dtypes import convert

    return tuple(convert(tensor, spec.dtype) for tensor, spec in zip(step.hidden, info.takes, strict=True))


def _check_result(info: StageInfo, step: Step, result: StageResult) -> None:
    if not is_last(info):
        if not _are_of(result.tensors, info.gives):
            given = show_specs(_describe(result.tensors, info.gives))
            raise StageLost(f"a stage that gives {show_specs(info.gives)} gave {given}")
        return
    num_outputs = sum([len(row.outputs) for row in step.rows])
    if len(result.answers) != num_outputs:
        raise StageLost(f"the stage gave {len(result.answers)} answers where {num_outputs} were asked for")


def _are_of(tensors: Sequence[Tensor], wanted: Sequence[TensorSpec]) -> bool:
    """Whether tensors have the dtypes and shapes of ``wanted``, in its order."""
    return [(each.dtype, each.shape[1:]) for each in tensors] == [(each.dtype, each.token_shape) for each in wanted]


def _describe(tensors: Sequence[Tensor], wanted: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return what tensors are, with the names and the exactness of those wanted: the order tells them apart."""
    names = [(spec.name, spec.is_exact) for spec in wanted] + [(HIDDEN, False)] * (len(tensors) - len(wanted))
    return tuple(
        TensorSpec((tensor.shape or (0,))[-1], tensor.dtype, name, tensor.shape[1:-1], is_exact)
        for tensor, (name, is_exact) in zip(tensors, names, strict=False)
    )
