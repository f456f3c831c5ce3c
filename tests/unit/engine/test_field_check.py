from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from msgspec.structs import replace as change

from parallax_core.api import EngineInfo, Grammar, InvalidRequest, Request, RequestField, RequestId, Sampling
from parallax_core.engine.field_check import FieldCheck

INFO = EngineInfo(
    num_layers=2, vocab_size=100, context_length=50, max_running=4, max_batch_tokens=8, seed="engine", max_logprobs=5
)
ALL = replace(INFO, honours=frozenset(get_args(RequestField)), max_answers=3)
REQUEST = Request(id=RequestId("a"), prompt=(1, 2), max_tokens=4, sampling=Sampling())
VALUES: dict[str, Any] = {
    "logprobs": 2,
    "prompt_logprobs": 0,
    "priority": -1,
    "adapter": "poetry",
    "salt": "tenant",
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
    "logit_bias": ((3, 1.0),),
    "min_tokens": 2,
    "grammar": Grammar(kind="json_object"),
}


def make_request(**values: Any) -> Request:
    """Return a request with other values of some fields, of its own or of its sampling."""
    own = {name: value for name, value in values.items() if name in Request.__dataclass_fields__}
    rest = {name: value for name, value in values.items() if name not in own}
    return replace(REQUEST, **own, sampling=change(REQUEST.sampling, **rest))


def refuse(info: EngineInfo, request: Request) -> str | None:
    with pytest.raises(InvalidRequest) as refused:
        FieldCheck(info).check(request)
    return refused.value.param


def test_values_are_given_for_every_field() -> None:
    assert set(VALUES) == set(get_args(RequestField))


@pytest.mark.parametrize("name", VALUES)
def test_field_that_the_engine_does_not_honour_is_refused_by_name(name: str) -> None:
    request = make_request(**{name: VALUES[name]})
    assert refuse(replace(ALL, honours=ALL.honours - {name}), request) == name
    passed = FieldCheck(ALL).check(request)
    assert getattr(passed if hasattr(passed, name) else passed.sampling, name) == VALUES[name]


def test_request_with_defaults_needs_nothing() -> None:
    assert FieldCheck(INFO).check(REQUEST) == REQUEST


def test_core_does_what_it_can_do_itself() -> None:
    request = replace(REQUEST, max_tokens=None, default_max_tokens=7, stop=("x",), timeout_s=3.0, waited_s=1.0)
    assert FieldCheck(INFO).check(request) == replace(REQUEST, max_tokens=7)


def test_answer_without_a_limit_may_fill_the_context() -> None:
    assert FieldCheck(INFO).check(replace(REQUEST, max_tokens=None)).max_tokens == 48


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (100,)}, "prompt"),
        ({"prompt": (1,) * 50}, "prompt"),
        ({"max_tokens": 49}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 4}, "n"),
        ({"n": 0}, "n"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt_logprobs": 6}, "prompt_logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"min_tokens": 5}, "max_tokens"),
        ({"delivered": ((1,),)}, "delivered"),
    ],
)
def test_request_that_can_never_be_served_is_refused(changes: dict[str, Any], param: str) -> None:
    assert refuse(ALL, make_request(**changes)) in {param, "min_tokens"}


def test_seed_of_a_client_is_refused_where_draws_cannot_be_repeated() -> None:
    seeded = replace(REQUEST, is_seeded=True)
    assert FieldCheck(INFO).check(seeded) == seeded
    assert refuse(replace(INFO, seed="none"), seeded) == "seed"
    assert FieldCheck(replace(INFO, seed="none")).check(make_request(seed=7)).sampling.seed == 7
