"""What the types of a message do not say: ranges, lengths that go together, indexes that exist.

Everything here may come from a damaged or hostile peer. A stage still checks what only it knows: which sequences are
open, how long they are, and which tokens there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import inf, isfinite

from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import (
    Answer,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    Open,
    Output,
    Row,
    Score,
    Scored,
    SequenceSpec,
    Span,
    State,
    Truncate,
)
from parallax_core.contracts.tensor import Tensor
from parallax_core.wire.errors import BadFrame
from parallax_core.wire.messages import LARGEST, Mask, Message, Result, Step


def check_message(message: Message) -> None:
    """Check what the types leave open.

    Raises:
        BadFrame: naming what is out of bounds.
    """
    match message:
        case Step():
            check_edits(message.edits)
            check_rows(message.rows)
            check_tensors(message)
        case Result():
            check_answers(message.answers, len(message.tensors))
        case Mask(bits=Tensor(dtype="uint8", shape=(_,))):
            pass
        case Mask():
            raise BadFrame(f"a mask is {message.bits.dtype} of {len(message.bits.shape)} axes, not uint8 of one")


def require(truth: bool, what: str) -> None:  # noqa: FBT001 - the condition is the argument
    """Raise `BadFrame`, saying ``what`` is wrong, unless ``truth``."""
    if not truth:
        raise BadFrame(what)


def check_counts(values: Sequence[int], what: str) -> None:
    """Check that all of ``values`` lie in ``range(2**53)``."""
    if values and (min(values) < 0 or max(values) > LARGEST):
        raise BadFrame(f"{what} is out of range")


def check_edits(edits: tuple[Edit, ...]) -> None:
    """Check handles, lengths and specs."""
    for edit in edits:
        match edit:
            case Open():
                check_counts((edit.seq,), "a sequence")
                check_spec(edit.spec)
            case Fork():
                check_counts((edit.src, edit.dst, edit.length, edit.choice), "a fork")
                if edit.spec:
                    check_spec(edit.spec)
            case Truncate():
                check_counts((edit.seq, edit.length), "a truncation")
            case Drop():
                check_counts((edit.seq,), "a sequence")


def check_spec(spec: SequenceSpec) -> None:
    """Check a prompt's length, a priority, and the ranges `Sampling` promises to stages."""
    check_counts((spec.prompt_length, abs(spec.priority)), "a spec")
    sampling = spec.sampling
    check_counts((sampling.top_k, sampling.min_tokens), "a sampling")
    check_counts(sampling.stop_ids, "a stop id")
    check_counts([token for token, _ in sampling.logit_bias], "a biased token")
    require(0 <= sampling.seed < 2**64, "a seed is out of range")
    require(are_sound(sampling), "a sampling is out of range")


def are_sound(sampling: Sampling) -> bool:
    """Say whether the fractional settings are in their ranges; NaN never is."""
    return (
        0 <= sampling.temperature < inf
        and 0 < sampling.top_p <= 1
        and 0 <= sampling.min_p <= 1
        and isfinite(sampling.presence_penalty)
        and isfinite(sampling.frequency_penalty)
        and 0 < sampling.repetition_penalty < inf
        and all(bias < inf for _, bias in sampling.logit_bias)
    )


def check_rows(rows: tuple[Row, ...]) -> None:
    """Check all rows at once where it can be done, since a decode step has hundreds of short ones."""
    check_counts([row.seq for row in rows], "a sequence")
    check_counts([row.start for row in rows], "a start")
    check_counts(list(chain.from_iterable([row.tokens for row in rows])), "a token")
    for row in rows:
        length = len(row.tokens)
        if not length:
            raise BadFrame("a row has no tokens")
        if row.outputs:
            check_outputs(row.outputs, length)
        if row.positions:
            check_positions(row.positions, length)
        for span in row.spans:
            check_span(span, length)


def check_outputs(outputs: tuple[Output, ...], length: int) -> None:
    """Check that offsets are in order and within a row of ``length`` tokens, and the rest in range."""
    last = 0
    for output in outputs:
        if not last <= output.offset < length:
            raise BadFrame("an output is out of order, or outside its row")
        last = output.offset
        match output:
            case Draw():
                require(0 < output.count <= LARGEST and -1 <= output.top <= LARGEST, "a draw is out of range")
            case Score():
                check_counts((output.token, output.top), "a score")


def check_positions(positions: tuple[int, ...], length: int) -> None:
    """Check that there is one position for each token, and that they increase."""
    require(len(positions) == length, "a row has positions for some of its tokens")
    check_counts(positions, "a position")
    require(all(a < b for a, b in pairwise(positions)), "positions do not increase")


def check_span(span: Span, length: int) -> None:
    """Check that a span lies within a row of ``length`` tokens."""
    check_counts((span.offset, span.length, span.tensor, span.start), "a span")
    require(span.offset + span.length <= length, "a span is outside its row")


def check_tensors(step: Step) -> None:
    """Check that hidden tensors fit the rows, and that spans lie within the embeddings if there are any."""
    tokens = sum([len(row.tokens) for row in step.rows])
    for tensor in step.hidden:
        require(len(tensor.shape) == 2 and tensor.shape[0] == tokens, "a hidden tensor does not fit the rows")  # noqa: PLR2004 - rows, columns
    if not step.embeddings:
        return
    lengths = [tensor.shape[0] if len(tensor.shape) == 2 else -1 for tensor in step.embeddings]  # noqa: PLR2004 - the same
    require(min(lengths) >= 0, "an embedding tensor is not a matrix")
    for span in chain.from_iterable([row.spans for row in step.rows]):
        require(span.tensor < len(lengths), "a span names a tensor that is not there")
        require(span.start + span.length <= lengths[span.tensor], "a span is outside its tensor")


def check_answers(answers: tuple[Answer, ...], tensors: int) -> None:
    """Check token ids, and that answers name one of so many ``tensors``."""
    for answer in answers:
        match answer:
            case Drawn():
                check_counts(answer.tokens, "a token")
                check_counts([token for token, _ in answer.top], "a token")
                require(len(answer.logprobs) in {0, len(answer.tokens)}, "some drawn tokens have log-probabilities")
            case Scored():
                check_counts([token for token, _ in answer.top], "a token")
            case State():
                require(0 <= answer.tensor < tensors, "an answer names a tensor that is not there")
