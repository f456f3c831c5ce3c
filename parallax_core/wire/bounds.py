"""Checks of messages beyond their types: matching lengths, orders, and indexes that exist.

Ranges are part of the types and checked during decoding. A message may come from a damaged or hostile peer. A stage
still checks what only it knows: the open sequences, their lengths, and the vocabulary.
"""

from __future__ import annotations

from itertools import chain, pairwise

from parallax_core.contracts.stage import (
    MOST_PAGES,
    Answer,
    Draw,
    Drawn,
    Hidden,
    Output,
    PoolInfo,
    Row,
    StageInfo,
    State,
)
from parallax_core.contracts.tensor import ITEM_BYTES, Tensor
from parallax_core.contracts.value import LARGEST
from parallax_core.wire.base import MOST_TEXT
from parallax_core.wire.checks import check_parts, check_words, require
from parallax_core.wire.errors import BadFrame
from parallax_core.wire.membership import Join, Linked, Ready
from parallax_core.wire.messages import CoreMessage, Hello, Mask, Result, Step, Welcome

MOST_POOLS = 64
"""The most pools of a stage."""
MOST_AXES = 4
"""The most axes of a token's part of a hidden tensor."""
MOST_AHEAD = 16
"""The most steps that a stage takes ahead."""


def check_message(message: CoreMessage) -> None:
    """Check a message beyond its types.

    Raises:
        BadFrame: if its fields do not fit each other; the message names the fault.
    """
    match message:
        case Step():
            check_rows(message.rows)
            check_tensors(message)
        case Result():
            check_answers(message.answers, len(message.tensors))
        case Ready():
            check_info(message.info)
        case Join() | Hello() | Welcome() | Linked():
            check_introduction(message)
        case Mask():
            check_mask(message.bits)


def check_mask(bits: Tensor) -> None:
    """Check the dtype and shape of a mask."""
    if bits.dtype != "uint8" or len(bits.shape) != 1:
        raise BadFrame(f"a mask is {bits.dtype} with {len(bits.shape)} axes, not uint8 with one")


def check_rows(rows: tuple[Row, ...]) -> None:
    """Check the outputs, positions and spans of rows against their tokens."""
    for row in rows:
        outputs = row.outputs
        first = outputs[0] if len(outputs) == 1 else None
        if type(first) is not Draw or first.offset >= len(row.tokens):  # saves a call for each decode
            check_outputs(outputs, len(row.tokens))
        if row.positions:
            check_positions(row.positions, len(row.tokens))
        for span in row.spans:
            require(span.offset + span.length <= len(row.tokens), "a span is outside its row")


def check_outputs(outputs: tuple[Output, ...], length: int) -> None:
    """Check that offsets are in order and within a row of ``length`` tokens."""
    last = 0
    for output in outputs:
        if not last <= output.offset < length:
            raise BadFrame("an output is out of order or outside its row")
        if isinstance(output, Hidden) and output.summed > output.offset + 1:
            raise BadFrame("an output sums hidden states outside its row")
        last = output.offset


def check_positions(positions: tuple[int, ...], length: int) -> None:
    """Check that there is one position for each token and that positions increase."""
    require(len(positions) == length, "a row has positions for only some of its tokens")
    require(all(a < b for a, b in pairwise(positions)), "positions do not increase")


def check_tensors(step: Step) -> None:
    """Check that hidden tensors fit the rows and that spans lie within the embeddings, if there are any."""
    tokens = sum([len(row.tokens) for row in step.rows]) if step.hidden else 0
    for tensor in step.hidden:
        require(len(tensor.shape) >= 2 and tensor.shape[0] == tokens, "a hidden tensor does not fit the rows")  # noqa: PLR2004 - rows, columns
    if not step.embeddings:
        return
    lengths = [tensor.shape[0] if len(tensor.shape) == 2 else -1 for tensor in step.embeddings]  # noqa: PLR2004 - the same
    require(min(lengths) >= 0, "an embedding tensor is not a matrix")
    for span in chain.from_iterable([row.spans for row in step.rows]):
        require(span.tensor < len(lengths), "a span refers to a tensor that does not exist")
        require(span.start + span.length <= lengths[span.tensor], "a span is outside its tensor")


def check_answers(answers: tuple[Answer, ...], tensors: int) -> None:
    """Check that answers are complete and refer to one of ``tensors`` tensors."""
    for answer in answers:
        if isinstance(answer, Drawn):
            if answer.logprobs and len(answer.logprobs) != len(answer.tokens):
                raise BadFrame("only some drawn tokens have log-probabilities")
        elif isinstance(answer, State) and answer.tensor >= tensors:
            raise BadFrame("an answer refers to a tensor that does not exist")


def check_info(info: StageInfo) -> None:
    """Check that a node's description of its stage is plausible."""
    layers = info.layers
    require(0 <= layers.start < layers.stop <= info.num_layers <= LARGEST, "the layers of a stage are out of range")
    sizes = (info.vocab_size, info.context_length, info.max_batch_tokens)
    require(all(0 < size <= LARGEST for size in sizes), "a size of a stage is out of range")
    require(0 <= info.weight_bytes <= LARGEST, "the size of a stage's weights is out of range")
    require(0 <= info.saturation_rows <= LARGEST, "the saturation rows of a stage are out of range")
    require(0 <= info.steps_ahead <= MOST_AHEAD, "the steps that a stage takes ahead are out of range")
    require(0 < len(info.pools) <= MOST_POOLS, f"a stage has {len(info.pools)} pools, not 1 to {MOST_POOLS}")
    for pool in info.pools:
        check_pool(pool)
    words = (info.device, info.dtype, info.weights_version)
    require(all(len(word) <= MOST_TEXT for word in words), "a text of a stage is too long")
    check_words(*words)
    check_parts(info.weights_parts)
    for spec in (*info.takes, *info.gives):
        axes: tuple[int, ...] = spec.token_shape
        is_sane = spec.dtype in ITEM_BYTES and len(axes) <= MOST_AXES and min(axes) > 0
        is_sane = is_sane and spec.token_bytes <= LARGEST
        require(is_sane, "the dtype or width of a hidden tensor is invalid")
        require(len(spec.name) <= MOST_TEXT, "a text of a stage is too long")
        check_words(spec.name)


def check_introduction(message: Join | Hello | Welcome | Linked) -> None:
    """Check the texts of what nodes say of themselves."""
    match message:
        case Join():
            check_words(message.address, message.host, message.model, *message.backends)
        case Hello():
            check_words(message.node, message.software, message.purpose)
        case Welcome():
            check_words(message.node, message.software)
        case Linked():
            check_words(message.relay)


def check_pool(pool: PoolInfo) -> None:
    """Check the numbers of a pool."""
    require(0 < pool.page_size <= LARGEST, "the page size of a pool is out of range")
    require(0 < pool.num_pages <= MOST_PAGES, f"a pool has {pool.num_pages} pages, not 1 to {MOST_PAGES}")
    others = (pool.window, pool.rewind, pool.checkpoint_every)
    require(all(0 <= number <= LARGEST for number in others), "a number of a pool is out of range")
