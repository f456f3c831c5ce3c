from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Capability, Grammar, InvalidRequest, Sampling, StageInfo
from parallax_core.engine.validate import RequestValidator, take_grammars
from tests.unit.engine.replica import TOY, Replica, make_request, open_stages


def make_validator(*capabilities: Capability) -> RequestValidator:
    infos = [replace(stage.info, capabilities=frozenset(capabilities)) for stage in open_stages(TOY, 2)]
    return RequestValidator(tuple(infos), 16)


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "message"),
    [
        ([], {}, "prompt", "empty"),
        (range(16), {}, "prompt", "16 in all"),
        ([1, 97], {}, "prompt", "token 97; this model.s tokens are 0 to 96"),
        ([-1, 5], {}, "prompt", "token -1; this model.s tokens are 0 to 96"),
        ([1, 2], {"max_tokens": 15}, "max_tokens", "more than the 16"),
        ([1, 2], {"max_tokens": 0}, "max_tokens", "at least 1"),
        ([1, 2], {"n": 0}, "n", "between 1 and 128"),
        ([1, 2], {"n": 129}, "n", "between 1 and 128"),
        ([1, 2], {"logprobs": -1}, "logprobs", "between 0 and 97"),
        ([1, 2], {"logprobs": 98}, "logprobs", "between 0 and 97"),
        ([1, 2], {"prompt_logprobs": -1}, "prompt_logprobs", "between 0 and 97"),
        ([1, 2], {"adapter": "tuned"}, "adapter", "'tuned' cannot be used"),
    ],
)
def test_validator_refuses_what_can_never_be_served(
    prompt: Any, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        make_validator("logprobs").check(make_request(prompt, **fields))
    assert caught.value.param == param


@pytest.mark.parametrize("capabilities", [(), ("masks",)])
def test_stages_take_grammars_exactly_if_the_validator_accepts_them(capabilities: tuple[Capability, ...]) -> None:
    validator = make_validator(*capabilities)
    request = make_request([1], grammar=Grammar(kind="json_object"), stop_ids=frozenset({2}))
    refused = nullcontext() if take_grammars(validator.stages) else pytest.raises(InvalidRequest, match="without masks")
    with refused:
        validator.check(request)
    assert take_grammars(validator.stages) == bool(capabilities)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_validator_refuses_logprobs_where_there_are_none(name: str) -> None:
    request = make_request([1], **{name: 0})
    with pytest.raises(InvalidRequest, match=f"{name} is not available") as caught:
        make_validator().check(request)
    assert caught.value.param == name
    assert make_validator("logprobs").check(request) == 4


def test_validator_lets_adapters_pass_where_every_stage_has_them() -> None:
    request = make_request([1], adapter="tuned")
    assert make_validator("adapters").check(request) == 4
    bare: StageInfo = TOY.open().info
    with pytest.raises(InvalidRequest):
        RequestValidator((*make_validator("adapters").stages, bare), 16).check(request)


def test_validator_leaves_what_room_there_is_for_the_answer() -> None:
    assert make_validator().check(make_request([1, 2, 3], None)) == 13
    assert make_validator().check(make_request([1, 2, 3], 13)) == 13


@pytest.mark.parametrize(
    ("most", "default", "least", "expected"),
    [(None, 5, 0, 5), (None, 500, 0, 13), (7, 5, 0, 7), (None, 5, 6, 6), (None, None, 6, 13)],
)
def test_default_length_holds_only_where_a_request_states_none_and_as_far_as_there_is_room(
    most: int | None, default: int | None, least: int, expected: int
) -> None:
    request = make_request([1, 2, 3], most, default_max_tokens=default, sampling=Sampling(min_tokens=least))
    assert make_validator().check(request) == expected


@pytest.mark.parametrize(
    ("most", "delivered", "ended"),
    [
        (3, ((5, 0, 96), (5,)), ()),
        (None, ((5,) * 13, (5,) * 12), (0,)),
        (3, ((5,) * 4, (5,) * 3), (0,)),
    ],
)
def test_answers_go_on_after_what_was_delivered_as_long_as_there_is_room(
    most: int | None, delivered: tuple[tuple[int, ...], ...], ended: tuple[int, ...]
) -> None:
    request = make_request([1, 2, 3], most, n=2, delivered=delivered, ended=frozenset(ended))
    assert make_validator().check(request) == (most or 13)


@pytest.mark.parametrize(
    ("most", "delivered", "message"),
    [
        (3, ((5,),), r"delivered has answers of \[1\] tokens; each of the 2 answers needs at least one"),
        (3, ((5,), (5,), (5,)), r"answers of \[1, 1, 1\] tokens"),
        (3, ((5,), ()), r"answers of \[1, 0\] tokens"),
        (3, ((5,) * 4, (5,)), "an answer of 4 tokens, which has not ended; it can have only 3"),
        (None, ((5,) * 13, (5,)), "an answer of 13 tokens, which has not ended; it can have only 13"),
        (3, ((97,), (5,)), "delivered has tokens outside of 0 to 96"),
        (3, ((5,), (5, -1)), "delivered has tokens outside of 0 to 96"),
    ],
)
def test_validator_refuses_what_cannot_have_been_delivered(
    most: int | None, delivered: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        make_validator().check(make_request([1, 2, 3], most, n=2, delivered=delivered))
    assert caught.value.param == "delivered"


def test_validator_takes_every_limit_itself() -> None:
    check = make_validator("logprobs").check
    assert check(make_request([0, 96], 14, n=128, logprobs=97, prompt_logprobs=0)) == 14
    assert check(make_request(range(15), 1)) == 1


def test_head_asks_the_gate_before_anything_else() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=4))
    with pytest.raises(InvalidRequest, match="16 in all"):
        replica.ask(range(16))
    assert replica.head.plan(0.0) is None
