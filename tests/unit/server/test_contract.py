"""The server keeps to its own description: requests made up from it, right and wrong ones, to a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site
from tests.unit.server.thread import Threaded
from tests.unit.server.trials import try_few

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
FEW = {"get": 5, "delete": 5, "post": 12}
LIMITS: dict[str, Any] = {"max_tokens": 8, "max_completion_tokens": 8, "n": 2, "best_of": 2, "min_tokens": 4}
"""So long an answer may be: the point is what is answered, not how much."""
VALID = {field: 128 if field in {"n", "best_of"} else 2**31 - 1 for field in LIMITS}
"""The largest valid values; larger ones are sent as they are, and must be refused."""


@pytest.fixture(scope="module")
def server() -> Iterator[Threaded]:
    PluginHost.prepare()  # which tells plugins the configuration that some of them show
    with Threaded(ServerOptions(keys=ApiKeys({"key": "admin"}))) as server:
        yield server


SITE = Site(ServerOptions(keys=ApiKeys({"key": "admin"})))
SCHEMA = schemathesis.openapi.from_dict(SITE.client.get("/openapi.json", headers={"X-Api-Key": "key"}).json())
ENDLESS = ("GET /v1/cluster/events", "GET /v1/requests/events")
"""Streams without an end; tests of their plugins read them."""
ELSEWHERE = ("GET /v1/catalog/search", "GET /v1/catalog/formats")
"""What asks a hub, which is not there."""
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations() if isinstance(each, Ok)}
for left in (*ENDLESS, *ELSEWHERE):
    del OPERATIONS[left]
CASES = [(name, GenerationMode.POSITIVE) for name in OPERATIONS]
CASES += [(name, GenerationMode.NEGATIVE) for name in OPERATIONS if name.startswith("POST ")]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_server_keeps_to_its_description(server: Threaded, name: str, mode: GenerationMode) -> None:
    @try_few(FEW[OPERATIONS[name].method])
    @given(OPERATIONS[name].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if isinstance(case.body, dict):
            limit_work(case.body)
        headers = {"Authorization": "Bearer key"}
        response = case.call(base_url=server.url, headers=headers)
        case.validate_response(response, checks=CHECKS, headers=headers)

    try:
        check()
    finally:
        server.listening.site.router.readmit(0)  # some drain it


def limit_work(body: dict[str, Any]) -> None:
    """Let few requests be for other models, and all answers be short."""
    if isinstance(body.get("model"), str):
        body["model"] = "toy"
    for field, most in LIMITS.items():
        if isinstance(body.get(field), int) and most < body[field] <= VALID[field]:
            body[field] = most
