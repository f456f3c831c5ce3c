"""The kit for API dialects passes our own, and catches a fault of each sort."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from fastapi import APIRouter
from pydantic import ConfigDict, field_validator

from parallax_api_anthropic.plugin import parallax_register_dialects as offer_messages
from parallax_api_embeddings.plugin import parallax_register_dialects as offer_embeddings
from parallax_api_openai.completion_request import CompletionRequest
from parallax_api_openai.plugin import parallax_register_dialects as offer_openai
from parallax_api_responses.plugin import parallax_register_dialects as offer_responses
from parallax_api_tokenize.plugin import parallax_register_dialects as offer_tokenize
from parallax_core.api import BodySpec, Dialect, DialectSpec, ErrorForm, Ref, Unavailable, needs_role
from parallax_core.testing.dialect import DialectConformance
from parallax_observe.plugin import parallax_register_dialects as offer_metrics
from parallax_openapi.plugin import parallax_register_dialects as offer_openapi
from tests.conformance.harness import find_failures, run_test

HERE = "tests.conformance.test_dialect"
HELLO = [{"role": "user", "content": "hello there"}]
OPENAI = {spec.name: spec for spec in offer_openai()}


class TestChat(DialectConformance):
    spec = OPENAI["chat"]
    bodies = MappingProxyType({"chat": {"messages": HELLO}})


class TestCompletions(DialectConformance):
    spec = OPENAI["completions"]
    bodies = MappingProxyType({"completion": {"prompt": "hello there"}})


class TestModels(DialectConformance):
    spec = OPENAI["models"]
    bodies = MappingProxyType[str, Any]({})


class TestStopRequest(DialectConformance):
    spec = OPENAI["stop-request"]
    bodies = MappingProxyType[str, Any]({})


class TestTokenize(DialectConformance):
    [spec] = offer_tokenize()
    bodies = MappingProxyType({"tokenize": {"prompt": "hello there"}, "detokenize": {"tokens": [1, 2]}})


class TestMetrics(DialectConformance):
    [spec] = offer_metrics()
    bodies = MappingProxyType[str, Any]({})


class TestOpenapi(DialectConformance):
    [spec] = offer_openapi()
    bodies = MappingProxyType[str, Any]({})


class TestEmbeddings(DialectConformance):
    [spec] = offer_embeddings()
    bodies = MappingProxyType({"embedding": {"input": "hello there"}})


class TestMessages(DialectConformance):
    [spec] = offer_messages()
    bodies = MappingProxyType({"messages": {"messages": HELLO, "max_tokens": 5}, "count_tokens": {"messages": HELLO}})


class TestResponses(DialectConformance):
    [spec] = offer_responses()
    bodies = MappingProxyType({"responses": {"input": "hello there"}, "compact": {"input": "hello there"}})


class GoodKit(DialectConformance):
    spec = DialectSpec(
        name="words",
        summary="",
        open=Ref(f"{HERE}:open_good"),
        bodies={
            "words": BodySpec(
                path="/v1/words",
                schema=Ref("parallax_api_openai.completion_request:CompletionRequest"),
                read=Ref("parallax_api_openai.request:read_completion_body"),
            )
        },
    )
    bodies = MappingProxyType({"words": {"prompt": "hello there"}})


def make_router(path: str = "/v1/words", role: Any = "user") -> APIRouter:
    router = APIRouter()

    async def answer() -> None:
        raise Unavailable("no model is loaded")

    router.post(path)(needs_role(role)(answer) if role else answer)
    return router


def write_fault(status: int, error: Any, request_id: str) -> tuple[int, dict[str, Any]]:
    return status, {"fault": error["message"], "id": request_id}


def open_good(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(),), errors=ErrorForm(paths=("/v1/words",), write=write_fault))


def open_elsewhere(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router("/v1/other"),))


def open_silent(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(role=""),))


def open_mute(models: object, options: object) -> Dialect:
    errors = ErrorForm(paths=("/v1/words",), write=lambda status, error, _: (status, {}))
    return Dialect(routers=(make_router(),), errors=errors)


def open_jammed(models: object, options: object) -> Dialect:
    async def close() -> None:
        raise TimeoutError

    return Dialect(routers=(make_router(),), close=close)


class BadMeter:
    """Cannot measure any request."""

    def begin(self, arrived: float, parent: str) -> Any:
        raise LookupError(parent)

    def count_error(self, kind: str) -> None:
        pass


def open_failing_meter(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(),), meter=BadMeter())


def open_stubborn(models: object, options: object) -> Dialect:
    async def run() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
            if (task := asyncio.current_task()) is not None and task.cancelling() > 1:
                return  # so that the test ends, too

    return Dialect(routers=(make_router(),), run=run)


def open_failing(models: object, options: object) -> Dialect:
    async def run() -> None:
        raise ZeroDivisionError

    return Dialect(routers=(make_router(),), run=run)


def wrap_all(app: Any) -> Any:
    """Return middleware that moves every request elsewhere."""
    return lambda scope, receive, send: app({**scope, "path": "/v1/elsewhere"}, receive, send)


def wrap_requests(app: Any) -> Any:
    """Return middleware that knows of requests alone."""

    async def pass_on(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)

    return pass_on


def wrap_bodies(app: Any) -> Any:
    """Return middleware that empties every body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    return lambda scope, _, send: app(scope, receive, send)


def open_moving(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(),), path_middleware=wrap_all)


def open_swallowing(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(),), path_middleware=wrap_requests)


def open_emptying(models: object, options: object) -> Dialect:
    return Dialect(routers=(make_router(),), body_middleware=wrap_bodies)


class AnyBody(CompletionRequest):
    """A schema that takes every field."""

    model_config = ConfigDict(extra="allow")


class NamelessBody(CompletionRequest):
    """A schema that forgets the model."""

    @field_validator("model")
    @classmethod
    def forget(cls, value: str | None) -> None:
        del value


def change_body(**fields: Any) -> DialectSpec:
    return replace(GoodKit.spec, bodies={"words": replace(GoodKit.spec.bodies["words"], **fields)})


def test_kit_passes_a_good_dialect() -> None:
    assert find_failures(GoodKit) == {}


@pytest.mark.parametrize(
    ("spec", "test", "reason"),
    [
        (change_body(read=Ref("no_such_module:read")), "test_readers_import_no_routes", "cannot be imported"),
        (change_body(read=Ref("parallax_api_openai.chat:make_router")), "test_readers_import_no_routes", "fastapi"),
        (change_body(read=Ref("parallax_api_tokenize.request:tokenize")), "test_bodies_are_read", "raised"),
        (change_body(schema=Ref(f"{HERE}:AnyBody")), "test_unknown_field_is_refused_by_name", "unknown field"),
        (change_body(schema=Ref(f"{HERE}:NamelessBody")), "test_model_that_is_not_served_is_refused", "another model"),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_elsewhere")), "test_bodies_have_their_routes", "no route"),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_silent")), "test_routes_state_their_roles", "no role"),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_mute")), "test_errors_have_the_form_of_the_dialect", "say why"),
        (
            replace(GoodKit.spec, open=Ref(f"{HERE}:open_failing_meter")),
            "test_meter_takes_what_a_server_tells_it",
            "the meter raised LookupError",
        ),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_jammed")), "test_dialect_closes", "did not close"),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_stubborn")), "test_dialect_runs_until_cancelled", "not ended"),
        (replace(GoodKit.spec, open=Ref(f"{HERE}:open_failing")), "test_dialect_runs_until_cancelled", "ZeroDivision"),
        *(
            (
                replace(GoodKit.spec, open=Ref(f"{HERE}:{name}")),
                "test_middleware_passes_on_what_is_right",
                "comes through",
            )
            for name in ("open_moving", "open_swallowing", "open_emptying")
        ),
    ],
)
def test_kit_catches_a_planted_fault(spec: DialectSpec, test: str, reason: str) -> None:
    assert reason in run_test(type("FaultyKit", (GoodKit,), {"spec": spec}), test)
