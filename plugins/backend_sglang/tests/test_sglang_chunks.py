"""Requests as SGLang takes them, and its output as chunks."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_backend_sglang.chunks import AnswerTrimmer, list_options
from parallax_backend_sglang.fields import list_sampling
from parallax_backend_sglang.frames import Chunk, Generate
from parallax_core.api import Request, RequestId, Sampling

EOS = frozenset({2})
PLAIN = {"priority": 0, "salt": "", "adapter": "", "logprobs": None, "prompt_logprobs": None}


def make_trimmer(*stop_ids: int, **options: Any) -> AnswerTrimmer:
    return AnswerTrimmer(Generate(7, (1, 2, 3), {"max_new_tokens": 5}, {**PLAIN, **options}, stop_ids), EOS)


def give(*tokens: int, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {"output_ids": list(tokens), "meta_info": {"finish_reason": finish, "cached_tokens": 0, **meta}}


def test_stop_ids_that_hold_the_models_are_left_to_sglang() -> None:
    assert make_trimmer(9, 2).sampling == {"max_new_tokens": 5, "stop_token_ids": [2, 9]}


@pytest.mark.parametrize("stop_ids", [(), (9,)])
def test_end_of_sequence_is_ignored_unless_it_is_a_stop_id(stop_ids: tuple[int, ...]) -> None:
    assert make_trimmer(*stop_ids).sampling == {"max_new_tokens": 5, "ignore_eos": True}


def test_answer_is_cut_after_a_stop_id_that_sglang_does_not_know() -> None:
    trimmer = make_trimmer(9)
    assert trimmer.cut(give(2, 4)) == Chunk(number=7, tokens=(2, 4))
    assert trimmer.cut(give(5, 9, 6)) == Chunk(number=7, tokens=(5, 9), ended="stop")
    assert trimmer.is_over
    assert trimmer.cut(give(6)) is None


def test_end_that_sglang_finds_is_that_of_the_answer() -> None:
    assert make_trimmer(2).cut(give(5, 2, finish={"type": "stop", "matched": 2})) == Chunk(
        number=7, tokens=(5, 2), ended="stop"
    )
    assert make_trimmer().cut(give(5, finish={"type": "length", "length": 1})) == Chunk(
        number=7, tokens=(5,), ended="length"
    )


def test_abort_by_sglang_is_an_error_and_repeats_no_token() -> None:
    found = make_trimmer().cut(give(5, finish={"type": "abort", "message": "out of memory"}))
    assert found == Chunk(number=7, ended="error", message="out of memory")


def test_logprobs_are_those_of_the_tokens_with_as_many_best_ones_as_asked_for() -> None:
    meta: dict[str, Any] = {
        "output_token_logprobs": [(-0.5, 4, None), (-0.25, 9, None)],
        "output_top_logprobs": [[(-0.5, 4, None), (-1.0, 8, None)], [(-0.25, 9, None), (-3.0, 1, None)]],
        "input_token_logprobs": [(None, 1, None), (-2.0, 2, None), (-4.0, 3, None)],
        "input_top_logprobs": [None, [(-1.0, 6, None), (-2.0, 2, None)], [(-1.5, 3, None), (-4.0, 5, None)]],
    }
    trimmer = make_trimmer(9, logprobs=1, prompt_logprobs=2)
    chunk = trimmer.cut(give(4, 9, 5, **meta))
    assert chunk is not None
    assert [(each.token, each.logprob, each.top) for each in chunk.logprobs] == [
        (4, -0.5, ((4, -0.5),)),
        (9, -0.25, ((9, -0.25),)),
    ]
    assert [(each.token, each.logprob, each.top) for each in chunk.prompt_logprobs] == [
        (2, -2.0, ((6, -1.0), (2, -2.0))),
        (3, -4.0, ((3, -1.5), (5, -4.0))),
    ]
    again = make_trimmer(logprobs=None, prompt_logprobs=0)
    first, second = again.cut(give(4, **meta)), again.cut(give(4, **meta))
    assert first is not None
    assert second is not None
    assert [each.top for each in first.prompt_logprobs] == [(), ()]
    assert (first.logprobs, second.prompt_logprobs) == ((), ())


def test_options_of_a_request_become_arguments() -> None:
    assert list_options(PLAIN) == {"priority": 0}
    options = {**PLAIN, "priority": -3, "salt": "x", "adapter": "a", "logprobs": 2, "prompt_logprobs": 5}
    assert list_options(options) == {
        "priority": -3,
        "cache_salt": "x",
        "lora_path": "a",
        "return_logprob": True,
        "top_logprobs_num": 5,
        "logprob_start_len": 0,
    }
    assert list_options({**PLAIN, "logprobs": 0})["logprob_start_len"] == -1


def test_sampling_of_a_request_becomes_that_of_sglang() -> None:
    sampling = Sampling(temperature=0.7, top_k=4, top_p=0.9, min_p=0.1, presence_penalty=1.0, logit_bias=((5, -1.5),))
    request = Request(id=RequestId("a"), prompt=(1,), max_tokens=3, sampling=sampling)
    assert list_sampling(request) == {
        "max_new_tokens": 3,
        "temperature": 0.7,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.0,
        "logit_bias": {"5": -1.5},
    }


def test_greedy_request_has_no_filters() -> None:
    sampling = Sampling(temperature=0.0, top_k=3, top_p=0.5, min_p=0.2)
    found = list_sampling(Request(id=RequestId("a"), prompt=(1,), max_tokens=3, sampling=sampling))
    assert (found["temperature"], found["top_k"], found["top_p"], found["min_p"]) == (0.0, -1, 1.0, 0.0)
