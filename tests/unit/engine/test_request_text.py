from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Delta, Finish, Request, RequestId, Sampling, TokenLogprob
from parallax_core.engine.request_text import RequestText

LETTERS = "abcd"
END = 4


def decode(tokens: Sequence[int]) -> str:
    return "".join(LETTERS[token] for token in tokens if token < END)


def ask(**changes: Any) -> Request:
    fields = {"id": RequestId("a"), "prompt": (1, 2, 3), "max_tokens": 50, "sampling": Sampling(), **changes}
    return Request(**fields)


def finish(reason: Any = "length", **changes: Any) -> Finish:
    return Finish(reason=reason, prompt_tokens=3, output_tokens=0, **changes)


def read(request: Request, deltas: Sequence[Delta]) -> list[Delta]:
    """Return what a client gets of the deltas, up to the end."""
    text, shown = RequestText(request, decode), []
    for delta in deltas:
        if (found := text.read(delta)) is not None:
            shown.append(found)
            if found.finish is not None:
                break
    return shown


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 11), max_size=4),
    stop=st.sampled_from(((), ("ab",), ("c", "dd"), ("abc", "b"))),
)
def test_text_is_that_of_the_tokens_up_to_a_stop_string(
    tokens: list[int], cuts: set[int], stop: tuple[str, ...]
) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]
    parts = [Delta(tokens=tuple(tokens[a:b])) for a, b in pairwise(bounds)]
    parts[-1] = Delta(tokens=parts[-1].tokens, ended="length", finish=finish())
    shown = read(ask(stop=stop), parts)
    whole = decode(tokens)
    found = [at + len(word) for word in stop if (at := whole.find(word)) >= 0]
    num_tokens = min(found, default=len(tokens))
    ends = [at for word in stop if (at := whole[:num_tokens].find(word)) >= 0]
    assert "".join(delta.text for delta in shown) == whole[: min(ends, default=len(whole))]
    last = shown[-1].finish
    assert last is not None
    assert last.output_tokens == sum(len(delta.tokens) for delta in shown) == num_tokens
    assert (last.reason, shown[-1].ended) == (("stop", "stop") if found else ("length", "length"))


def test_stop_string_cuts_tokens_and_their_logprobs() -> None:
    logprobs = tuple(TokenLogprob(token, -1.0) for token in (0, 1, 2, 3))
    [delta] = read(ask(stop=("bc",), logprobs=0), [Delta(tokens=(0, 1, 2, 3), logprobs=logprobs, cached_tokens=2)])
    assert (delta.text, delta.tokens, delta.logprobs, delta.ended) == ("a", (0, 1, 2), logprobs[:3], "stop")
    assert delta.stop_string == "bc"
    assert delta.finish == Finish(reason="stop", prompt_tokens=3, output_tokens=3, cached_tokens=2)


def test_answer_that_was_ended_by_core_is_silent_and_the_others_go_on() -> None:
    shown = read(
        ask(n=2, stop=("b",)),
        [
            Delta(tokens=(1,), index=0),
            Delta(tokens=(0,), index=0),
            Delta(tokens=(0, 2), index=1),
            Delta(tokens=(3,), index=0, ended="length"),
            Delta(tokens=(3,), index=1, ended="length"),
        ],
    )
    assert [(delta.index, delta.text, delta.ended) for delta in shown] == [
        (0, "", "stop"),
        (1, "ac", None),
        (1, "d", "length"),
    ]
    assert shown[-1].finish == Finish(reason="length", prompt_tokens=3, output_tokens=4)


def test_stop_id_counts_and_has_no_text() -> None:
    [delta] = read(ask(stop_ids=frozenset({END})), [Delta(tokens=(0, END), ended="stop", finish=finish("stop"))])
    assert (delta.text, delta.tokens, delta.stop_string) == ("a", (0, END), "")
    assert delta.finish == Finish(reason="stop", prompt_tokens=3, output_tokens=2)


def test_stop_string_among_the_least_tokens_does_not_end_the_answer() -> None:
    request = ask(stop=("b",), sampling=Sampling(min_tokens=2))
    shown = read(request, [Delta(tokens=(1, 1, 0)), Delta(tokens=(1,))])
    assert ("".join(delta.text for delta in shown), shown[-1].ended) == ("bba", "stop")


@pytest.mark.parametrize("tokens", [(), (0,)])
def test_error_of_the_engine_passes_with_the_usage_of_the_client(tokens: tuple[int, ...]) -> None:
    [delta] = read(ask(), [Delta(tokens=tokens, finish=finish("error", message="it broke", cached_tokens=1))])
    assert delta.finish == Finish(
        reason="error", prompt_tokens=3, output_tokens=len(tokens), message="it broke", cached_tokens=1
    )
