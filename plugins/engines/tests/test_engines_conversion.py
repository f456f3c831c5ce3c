from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import (
    Delta,
    Finish,
    InvalidRequest,
    Reason,
    Request,
    RequestId,
    Sampling,
    ServiceMessage,
    TokenLogprob,
)
from parallax_core.wire.codec import decode, encode, index_kinds
from parallax_engines import conversion
from parallax_engines.conversion import is_part, make_submit, pack_deltas, read_submit, unpack_delta
from parallax_engines.messages import ALL, Deltas

REQUEST = Request(
    id=RequestId("7"),
    prompt=(1, 2),
    max_tokens=4,
    sampling=Sampling(seed=2**64 - 1),
    stop_ids=frozenset({3, 1}),
    priority=-5,
    n=2,
    logprobs=0,
    prompt_logprobs=3,
    adapter="poetry",
    salt="tenant",
)
scores = st.builds(
    TokenLogprob,
    st.integers(0, 9),
    st.floats(-9, 0),
    st.lists(st.tuples(st.integers(0, 9), st.floats(-9, 0)), max_size=3).map(tuple),
)


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    tokens = draw(st.lists(st.integers(0, 9), max_size=6).map(tuple))
    logprobs = tuple(draw(scores) for _ in tokens) if draw(st.booleans()) else ()
    prompt = draw(st.lists(scores, max_size=8).map(tuple))
    end = draw(st.none() | st.just(Finish(reason="stop", prompt_tokens=2, output_tokens=0, cached_tokens=1)))
    ended: Reason | None = draw(st.sampled_from((None, "stop")))
    cached = draw(st.integers(0, 2))
    return Delta(
        tokens=tokens, logprobs=logprobs, prompt_logprobs=prompt, ended=ended, finish=end, cached_tokens=cached
    )


def carry(message: ServiceMessage) -> Any:
    """Return a message as it arrives."""
    return decode(encode(message), kinds=index_kinds(ALL))


def join(parts: list[Delta]) -> Delta:
    """Return the delta that was sent in parts."""
    last = parts[-1]
    return replace(
        last,
        tokens=tuple(token for part in parts for token in part.tokens),
        logprobs=tuple(score for part in parts for score in part.logprobs),
        prompt_logprobs=tuple(score for part in parts for score in part.prompt_logprobs),
        cached_tokens=max(part.cached_tokens for part in parts),
    )


@given(found=deltas(), most=st.sampled_from((200, 400, 2**20)))
def test_delta_comes_out_as_it_went_in_however_small_frames_are(found: Delta, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "MOST_BYTES", most)
        portions = list(pack_deltas([(3, found), (4, Delta(tokens=(1,)))]))
    arrived: list[Any] = [carry(Deltas(portion)) for portion in portions]
    packed = [each for message in arrived for each in message.deltas]
    parts = [unpack_delta(each, 2) for each in packed if each.number == 3]
    assert join(parts) == found
    assert all(each.ended is None and each.finish is None for each in parts[:-1])
    assert [each for each in parts if each.prompt_logprobs and each.logprobs] == [] or len(parts) == 1
    assert packed[-1].number == 4


def test_large_deltas_are_sent_in_frames_that_a_receiver_takes() -> None:
    top = tuple((token, -1.0) for token in range(1000))
    score = TokenLogprob(1, -0.5, top)
    found = Delta(tokens=(1,) * 300, logprobs=(score,) * 300, prompt_logprobs=(score,) * 300, ended="stop")
    frames = [encode(Deltas(portion)) for portion in pack_deltas([(1, found)] * 3)]
    assert len(frames) > 10
    assert max(len(frame.header) for frame in frames) < 2**20 + 2**15


def test_prompt_logprobs_alone_are_a_part() -> None:
    [[packed]] = pack_deltas([(1, Delta(prompt_logprobs=(TokenLogprob(1, -1.0),)))])
    assert is_part(packed)
    [[packed]] = pack_deltas([(1, Delta(tokens=(1,)))])
    assert not is_part(packed)


def test_request_comes_out_as_it_went_in() -> None:
    message: Any = carry(make_submit(7, REQUEST))
    assert read_submit(message) == REQUEST
    plain = replace(REQUEST, logprobs=None, prompt_logprobs=None)
    assert read_submit(make_submit(7, plain)) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"salt": "x" * 5000},
        {"adapter": "x" * 300},
        {"prompt": (70000,) * 2**20},
        {"priority": 2**60},
        {"sampling": Sampling(seed=2**64)},
        {"sampling": Sampling(temperature=float("nan"))},
        {"stop_ids": frozenset({-1})},
    ],
)
def test_request_that_the_other_end_would_refuse_is_refused_before_it_is_sent(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="the request cannot be sent to the engine"):
        make_submit(1, replace(REQUEST, **changes))
