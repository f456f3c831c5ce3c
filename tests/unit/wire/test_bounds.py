from __future__ import annotations

import dataclasses
from math import inf, nan
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from parallax_cluster.wire.relay import RelayPlace, Relays, RelayUser, RelayUsers
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import (
    MOST_PAGES,
    Draw,
    Drawn,
    Drop,
    Fork,
    Hidden,
    Open,
    Row,
    Score,
    Scored,
    SequenceSpec,
    Span,
    State,
    Truncate,
)
from parallax_core.contracts.tensor import Tensor
from parallax_core.contracts.transport import Frame
from parallax_core.contracts.value import LARGEST
from parallax_core.wire.codec import VERSION_BYTE, encode
from parallax_core.wire.errors import BadFrame
from parallax_core.wire.membership import Ready
from parallax_core.wire.messages import Heartbeat, Hello, Mask, Message, Result, Step
from tests.unit.wire.damage import decode_any
from tests.unit.wire.make_golden_frames import DECODE, EPOCH, INFO, PREFILL, SAMPLES, SAMPLING, SPEC

BEYOND = 2**53
A = SeqId(1)
MATRIX = Tensor("float32", (3, 1), bytes(12))
SAMPLE = SAMPLES["result"]
assert isinstance(SAMPLE, Result)
RESULT: Result = SAMPLE


def step_of(*rows: Row, **given: Any) -> Step:
    return Step(EPOCH, 0, rows=rows, **given)


def edited(edit: Any) -> Step:
    return Step(EPOCH, 0, edits=(edit,))


def opened(**given: Any) -> Step:
    return edited(Open(A, SequenceSpec(prompt_length=1, sampling=replace(SAMPLING, **given))))


def answered(answer: Any) -> Result:
    return replace(RESULT, answers=(answer,))


def ready(**given: Any) -> Ready:
    return Ready(EPOCH, 0, dataclasses.replace(INFO, **given))


UGLY = ("a\x1b[31m", "a\nb", "\u202e", "\x00")
"""What would change a terminal, or a log."""
JOIN = SAMPLES["join"]


MOST = "<= 9007199254740991"
"""How the decoder says that a count is too large."""

BAD_MESSAGES: list[tuple[Message, str]] = [
    *[(replace(SAMPLES["step"], **{name: -1}), ">= 0") for name in ("epoch", "step")],
    *[(replace(SAMPLES["failure"], **{name: BEYOND}), MOST) for name in ("step", "stage")],
    (replace(SAMPLES["mask"], row=-1), ">= 0"),
    *[(replace(RESULT, seconds=seconds), "float") for seconds in (-0.5, nan, inf)],
    (replace(RESULT, free=(1, -1)), ">= 0"),
    (Heartbeat(EPOCH, -2, 0), ">= -1"),
    (replace(SAMPLES["hello"], node="x" * 257), "length <= 256"),
    # Edits.
    (edited(Open(SeqId(-1), SPEC)), ">= 0"),
    (edited(Open(A, SPEC, -1)), ">= 0"),
    (edited(Fork(SeqId(-1), A, 0)), ">= 0"),
    (edited(Fork(A, SeqId(BEYOND), 0)), MOST),
    (edited(Fork(A, A, -1)), ">= 0"),
    (edited(Fork(A, A, 1, -1)), ">= 0"),
    (edited(Fork(A, A, 1, 0, replace(SPEC, prompt_length=-1))), ">= 0"),
    (edited(Truncate(A, -1)), ">= 0"),
    (edited(Truncate(SeqId(BEYOND), 1)), MOST),
    (edited(Drop(SeqId(-1))), ">= 0"),
    (edited(Open(A, replace(SPEC, priority=-BEYOND))), ">= -9007199254740991"),
    (edited(Open(A, replace(SPEC, priority=BEYOND))), MOST),
    # Sampling.
    (opened(top_k=-1), ">= 0"),
    (opened(min_tokens=-1), ">= 0"),
    (opened(seed=-1), ">= 0"),
    (opened(stop_ids=(1, -2)), ">= 0"),
    (opened(logit_bias=((-1, 0.0),)), ">= 0"),
    *[(opened(logit_bias=((1, bias),)), "`float` <= 1.79") for bias in (inf, nan)],
    *[(opened(temperature=value), "`float`") for value in (-0.5, nan, inf)],
    *[(opened(top_p=value), "`float`") for value in (0.0, 1.5, nan)],
    *[(opened(min_p=value), "`float`") for value in (-0.5, 1.5, nan)],
    *[(opened(presence_penalty=value), "`float`") for value in (inf, -inf, nan)],
    *[(opened(frequency_penalty=value), "`float`") for value in (inf, -inf, nan)],
    *[(opened(repetition_penalty=value), "`float`") for value in (0.0, -1.0, inf, nan)],
    # Rows.
    (step_of(DECODE, Row(SeqId(-1), 0, (1,))), ">= 0"),
    (step_of(DECODE, Row(A, -1, (1,))), ">= 0"),
    (step_of(DECODE, Row(A, BEYOND, (1,))), MOST),
    (step_of(DECODE, Row(A, 0, (1, -1))), ">= 0"),
    (step_of(DECODE, Row(A, 0, (BEYOND,))), MOST),
    (step_of(Row(A, 0, ())), "of length >= 1"),
    (step_of(Row(A, 0, (1, 2), positions=(0,))), "positions for only some"),
    (step_of(Row(A, 0, (1,), positions=(0, 1))), "positions for only some"),
    (step_of(Row(A, 0, (1, 2), positions=(-1, 1))), ">= 0"),
    (step_of(Row(A, 0, (1, 2), positions=(4, 4))), "do not increase"),
    *[(step_of(Row(A, 0, (1, 2), (output,))), "outside its row") for output in (Draw(2), Score(2, 1), Hidden(2))],
    *[(step_of(Row(A, 0, (1, 2), (output,))), ">= 0") for output in (Draw(-1), Score(-1, 1), Hidden(-1))],
    (step_of(Row(A, 0, (1, 2), (Draw(1), Hidden(0)))), "out of order"),
    *[(step_of(Row(A, 0, (1, 2), (Hidden(at, at + 2),))), "sums hidden states outside its row") for at in (0, 1)],
    (step_of(Row(A, 0, (1,), (Draw(0, count=0),))), ">= 1"),
    (step_of(Row(A, 0, (1,), (Draw(0, top=-2),))), ">= -1"),
    (step_of(Row(A, 0, (1,), (Score(0, -1),))), ">= 0"),
    (step_of(Row(A, 0, (1,), (Score(0, 1, top=-1),))), ">= 0"),
    # Spans and tensors.
    *[
        (step_of(Row(A, 0, (1, 2), spans=(span,))), "a span is outside its row")
        for span in (Span(1, 2, 0), Span(3, 0, 0))
    ],
    *[
        (step_of(Row(A, 0, (1, 2), spans=(span,))), ">= 0")
        for span in (Span(-1, 1, 0), Span(0, -1, 0), Span(0, 1, -1), Span(0, 1, 0, -1))
    ],
    (step_of(replace(PREFILL, spans=(Span(0, 1, 1),)), embeddings=(MATRIX,)), "a tensor that does not exist"),
    (step_of(replace(PREFILL, spans=(Span(0, 2, 0, 2),)), embeddings=(MATRIX,)), "a span is outside its tensor"),
    (step_of(PREFILL, embeddings=(Tensor("float32", (3,), bytes(12)),)), "not a matrix"),
    (step_of(DECODE, hidden=(MATRIX,)), "does not fit the rows"),
    (step_of(DECODE, hidden=(Tensor("float32", (1,), bytes(4)),)), "does not fit the rows"),
    (Mask(EPOCH, 0, 0, Tensor("uint8", (1, 1), b"a")), "a mask is uint8 with 2 axes"),
    (Mask(EPOCH, 0, 0, Tensor("float32", (1,), b"abcd")), "a mask is float32"),
    # Answers.
    (answered(Drawn((1, -1))), ">= 0"),
    (answered(Drawn((1, 2), (-0.5,))), "log-probabilities"),
    (answered(Drawn((), (-0.5,))), "log-probabilities"),
    (answered(Drawn((1,), (), ((-1, -0.5),))), ">= 0"),
    (answered(Scored(-0.5, ((BEYOND, -0.5),))), MOST),
    *[(replace(JOIN, host=word), "unprintable") for word in UGLY],
    *[(replace(JOIN, backends=(word,)), "unprintable") for word in UGLY],
    *[(replace(JOIN, address=word), "unprintable") for word in UGLY],
    *[(replace(JOIN, model=word), "unprintable") for word in UGLY],
    *[(replace(JOIN, **{name: number}), MOST) for name in ("pid", "start", "stop", "memory") for number in (2**53,)],
    (replace(JOIN, backends=("x",) * 65), "length <= 64"),
    (replace(JOIN, backends=("x" * 257,)), "length <= 256"),
    (replace(JOIN, address="x" * 4097), "length <= 4096"),
    *[(Hello(3, "a", word, 1), "unprintable") for word in UGLY],
    (Hello(3, "a", "0.1", BEYOND), MOST),
    (replace(SAMPLES["failure"], message="x" * 4097), "Expected `str` of length <= 4096"),
    *[(replace(SAMPLES["linked"], relay=word), "unprintable") for word in UGLY],
    *[(replace(SAMPLES["not reached"], reason=word), "unprintable") for word in UGLY],
    *[(replace(SAMPLES["reach"], node=word), "unprintable") for word in UGLY],
    *[(replace(SAMPLES["ring"], node=word), "unprintable") for word in UGLY],
    *[(replace(SAMPLES["offer of a relay"], address=word), "unprintable") for word in UGLY],
    *[(Relays((RelayPlace("a", word),)), "unprintable") for word in UGLY],
    *[(RelayUsers((RelayUser(word),)), "unprintable") for word in UGLY],
    *[(replace(SAMPLES["ring"], token=bytes(size)), "length [<>]= 16") for size in (0, 15, 17)],
    (Relays((RelayPlace("a", ""),) * 9), "length <= 8"),
    (replace(SAMPLES["refusal"], message="x" * 4097), "length <= 4096"),
    (replace(SAMPLES["loading"], task="x" * 257), "length <= 256"),
    *[(ready(**{name: word}), "unprintable") for name in ("device", "dtype", "weights_version") for word in UGLY],
    *[(ready(**{name: "x" * 4097}), "too long") for name in ("device", "dtype", "weights_version")],
    *[(ready(weights_parts={word: "0"}), "unprintable") for word in UGLY],
    *[(ready(weights_parts={"layers.0": word}), "unprintable") for word in UGLY],
    (ready(weights_parts={"x" * 257: "0"}), "too long"),
    (ready(weights_parts={"layers.0": "0" * 257}), "too long"),
    (ready(weights_parts={str(number): "0" for number in range(2**15 + 1)}), "more parts than a model"),
    (answered(State(1)), "a tensor that does not exist"),
    (answered(State(-1)), ">= 0"),
]


@pytest.mark.parametrize(("message", "reason"), BAD_MESSAGES)
def test_message_out_of_bounds_is_refused(message: Message, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        decode_any(encode(message))


def test_spans_pass_a_stage_that_has_no_embeddings() -> None:
    step = step_of(PREFILL)
    assert decode_any(encode(step)) == step


def test_defaults_of_a_sampling_are_sound() -> None:
    step = edited(Open(A, SequenceSpec(prompt_length=1, sampling=Sampling())))
    assert decode_any(encode(step)) == step


def test_pool_of_more_pages_than_a_head_can_account_for_is_refused() -> None:
    ready = SAMPLES["ready"]
    assert isinstance(ready, Ready)
    pool = ready.info.pools[0]
    for num_pages in (MOST_PAGES, MOST_PAGES + 1):
        pools = (dataclasses.replace(pool, num_pages=num_pages),)
        frame = encode(replace(ready, info=dataclasses.replace(ready.info, pools=pools)))
        if num_pages == MOST_PAGES:
            decode_any(frame)
        else:
            with pytest.raises(BadFrame, match="a pool has 16777217 pages, not 1 to 16777216"):
                decode_any(frame)


def mask_frame(entry: Any, *buffers: bytes) -> Frame:
    return Frame(VERSION_BYTE + msgspec.msgpack.encode([3, 0, 0, 0, entry]), buffers)


def test_entry_and_buffer_that_fit_are_a_tensor() -> None:
    mask = Mask(Epoch(0), 0, 0, Tensor("uint8", (2,), b"ab"))
    assert decode_any(mask_frame(["uint8", [2], 0], b"ab")) == mask


@pytest.mark.parametrize(
    ("entry", "buffers", "reason"),
    [
        (["uint8", [3], 0], [b"ab"], "not 2 bytes"),
        (["uint9", [2], 0], [b"ab"], "uint9"),
        (["x" * 17, [2], 0], [b"ab"], "length <= 16"),
        (["uint8", [-2], 0], [b"ab"], ">= 0"),
        (["uint8", [-1, -2], 0], [b"ab"], ">= 0"),
        (["uint8", [2**62, 4, 2], 0], [b"ab"], "<= 9007199254740991"),
        (["uint8", [2**32, 2**32], 0], [b""], "not 0 bytes"),
        (["uint8", [1] * 9, 0], [b"a"], "length <= 8"),
        (["uint8", [2], 1], [b"ab"], "buffers once"),
        (["uint8", [2], -1], [b"ab"], ">= 0"),
        (["uint8", [2], 0], [], "buffers once"),
        (["uint8", [2], 0], [b"ab", b""], "buffers once"),
        (["uint8", [2], 0, 0], [b"ab"], "at most length 3"),
        (["uint8", [2.0], 0], [b"ab"], "Expected `int`"),
        (["uint8", [2], b"ab"], [b"ab"], "Expected `int`"),
    ],
)
def test_entry_that_does_not_fit_its_buffer_is_refused(entry: Any, buffers: list[bytes], reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        decode_any(mask_frame(entry, *buffers))


def test_buffer_named_twice_is_refused() -> None:
    header = [1, 0, 0, 0, [], [], 0.0, [["uint8", [1], 0], ["uint8", [1], 0]]]
    with pytest.raises(BadFrame, match="buffers once"):
        decode_any(Frame(VERSION_BYTE + msgspec.msgpack.encode(header), (b"a", b"b")))


def test_buffer_nobody_names_is_refused() -> None:
    with pytest.raises(BadFrame, match="its 0 tensors do not use each of its 1 buffers once"):
        decode_any(Frame(encode(SAMPLES["hello"]).header, (b"a",)))


@pytest.mark.parametrize("name", SAMPLES)
def test_field_nobody_knows_is_refused(name: str) -> None:
    frame = encode(SAMPLES[name])
    header = [*msgspec.msgpack.decode(frame.header[1:]), 0]
    with pytest.raises(BadFrame, match="at most length"):
        decode_any(Frame(VERSION_BYTE + msgspec.msgpack.encode(header), frame.buffers))


@pytest.mark.parametrize(
    ("given", "is_sound"),
    [
        ({"page_size": 1, "num_pages": 1, "window": 0, "rewind": 0, "checkpoint_every": 0}, True),
        ({"num_pages": 0}, False),
        ({"page_size": 0}, False),
        ({"page_size": LARGEST}, True),
        ({"page_size": LARGEST + 1}, False),
        ({"window": -1}, False),
        ({"window": LARGEST}, True),
        ({"rewind": -1}, False),
        ({"rewind": LARGEST + 1}, False),
        ({"checkpoint_every": -1}, False),
        ({"checkpoint_every": LARGEST}, True),
    ],
)
def test_numbers_of_a_pool_are_within_their_bounds(given: dict[str, int], is_sound: bool) -> None:
    ready = SAMPLES["ready"]
    assert isinstance(ready, Ready)
    pools = (dataclasses.replace(ready.info.pools[0], **given),)  # type: ignore[arg-type]  # all are numbers
    changed = replace(ready, info=dataclasses.replace(ready.info, pools=pools))
    if is_sound:
        assert decode_any(encode(changed)) == changed
        return
    with pytest.raises(BadFrame, match=r"of a pool|a pool has"):
        decode_any(encode(changed))
