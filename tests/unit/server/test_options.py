"""Who gets in, how much, how slowly, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from parallax_core.engine.limits import Limits
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.server import ignored_header
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.read_timeout import ReadTimeout
from tests.unit.server.letters import Site, error_of

QUESTION: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


def test_caller_that_asks_too_often_is_told_when_to_come_back() -> None:
    with Site(ServerOptions(max_per_minute=2)) as site:
        assert [site.post(**QUESTION).status_code for _ in range(3)] == [200, 200, 429]
        response = site.post(**QUESTION)
        error_of(response, 429)
        assert 1 <= int(response.headers["Retry-After"]) <= 30
        assert site.client.get("/v1/models").status_code == 200


def test_each_key_has_its_own_rate() -> None:
    options = ServerOptions(max_per_minute=1, keys=ApiKeys({"one": "user", "two": "user"}))
    with Site(options) as site:
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert [site.post(headers=headers, **QUESTION).status_code for _ in range(2)] == [200, 429]
        assert site.post(headers={"Authorization": "Bearer three"}, **QUESTION).status_code == 401


def test_made_up_key_is_no_other_caller() -> None:
    with Site(ServerOptions(max_per_minute=1)) as site:
        statuses = [site.post(headers={"Authorization": f"Bearer {key}"}, **QUESTION).status_code for key in "abc"]
        assert statuses == [200, 429, 429]


def test_caller_has_only_so_many_requests_under_way() -> None:
    release, entered = threading.Event(), threading.Event()

    def wait(batch: object) -> None:
        entered.set()
        release.wait(20)

    with Site(ServerOptions(max_concurrent=1)) as site:
        site.stage.before_step = wait
        first = threading.Thread(target=lambda: site.post(**QUESTION))
        first.start()
        assert entered.wait(20)
        error_of(site.post(**QUESTION), 429)
        release.set()
        first.join()
        assert site.post(**QUESTION).status_code == 200


def test_full_queue_is_a_429() -> None:
    with Site(pipeline=PipelineOptions(limits=Limits(max_running=1, max_waiting=0))) as site, site.full():
        response = site.post(**QUESTION)
        assert error_of(response, 429)["code"] == "overloaded"
        assert response.headers["Retry-After"] == "1"


def test_request_id_goes_in_and_out(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallax_core.server.access_log")
    assert site.post(headers={"X-Request-Id": "mine-1"}, **QUESTION).headers["X-Request-Id"] == "mine-1"
    for bad in ("a b", "x" * 129, "a\tb"):
        assert site.post(headers={"X-Request-Id": bad}, **QUESTION).headers["X-Request-Id"] not in {bad, ""}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("POST /v1/chat/completions 200 ")
    assert lines[0].endswith("id=mine-1")
    assert "hello" not in caplog.text


def test_path_cannot_write_lines_of_its_own_into_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallax_core.server.access_log")
    site.client.get("/nowhere%0aGET%20/forged")
    assert caplog.records[-1].getMessage().startswith("GET /nowhere%0aGET%20/forged 404 ")


def test_bodies_are_logged_only_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallax_core.server.access_log")
    with Site(ServerOptions(logs_bodies=True)) as site:
        site.post(**QUESTION)
    assert "hello" in caplog.text


def test_pages_of_other_origins_are_let_in_only_when_named(site: Site) -> None:
    headers = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in site.client.options("/v1/chat/completions", headers=headers).headers
    options = ServerOptions(cors_origins=("https://chat.example",), keys=ApiKeys({"k": "user"}))
    with Site(options) as open_site:
        answer = open_site.client.options("/v1/chat/completions", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
        other = open_site.client.options("/v1/chat/completions", headers={**headers, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origins", [("https://chat.example",), ("*",)])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_allowed_page_may_send_whatever_headers_its_sdk_has(origins: tuple[str, ...], method: str) -> None:
    names = (
        "authorization, content-type, x-api-key, anthropic-version, x-stainless-os, x-stainless-timeout, x-any-thing"
    )
    asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": method}
    with Site(ServerOptions(cors_origins=origins, keys=ApiKeys({"k": "user"}))) as site:
        for path in ("/v1/chat/completions", "/v1/messages", "/chat/completions", "/nowhere"):
            found = site.client.options(path, headers={**asked, "Access-Control-Request-Headers": names})
            assert found.status_code == 200, found.text
            assert found.headers["access-control-allow-headers"] == names
            assert method in found.headers["access-control-allow-methods"]
        refused = site.client.post("/v1/messages", headers={"Origin": "https://chat.example"})
        assert refused.status_code == 401
        assert "access-control-allow-origin" in refused.headers
        assert "request-id" in refused.headers["access-control-expose-headers"].lower()


def test_page_that_is_not_allowed_is_refused_in_its_preflight() -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with Site(ServerOptions(cors_origins=("https://chat.example",))) as site:
        found = site.client.options("/v1/chat/completions", headers=asked)
        assert (found.status_code, "access-control-allow-origin" in found.headers) == (400, False)


@pytest.mark.parametrize("path", ["/v1/replicas/0/drain", "/v1/chat/completions", "/tokenize"])
def test_page_that_may_not_ask_cannot_even_send(path: str) -> None:
    with Site(ServerOptions(cors_origins=("https://chat.example",))) as site:
        statuses = {
            origin: site.client.post(path, headers={"Origin": origin} if origin else {}).status_code
            for origin in ("", "https://chat.example", "http://testserver", "https://evil.example", "null")
        }
        assert statuses.pop("https://evil.example") == statuses.pop("null") == 403
        assert set(statuses.values()) == {200 if "drain" in path else 400}
    with Site(ServerOptions(cors_origins=("*",))) as site:
        assert site.client.post(path, headers={"Origin": "https://evil.example"}).status_code != 403


def test_lenient_server_names_the_fields_it_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with Site(ServerOptions(is_lenient=True)) as site:
        response = site.post(colour="red", größe=1, **QUESTION)
        assert response.status_code == 200
        assert response.headers["X-Ignored-Fields"] == "colour, gr??e"
        assert "colour" in caplog.text
        assert "X-Ignored-Fields" not in site.post(**QUESTION).headers
        turns = [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}], "nick": "me"}] * 2
        deeper = site.post(**{**QUESTION, "messages": turns}, stream=True, stream_options={"chunked": True})
        assert deeper.status_code == 200
        names = "messages.nick, messages.content.x, stream_options.chunked"
        assert sorted(deeper.headers["X-Ignored-Fields"].split(", ")) == sorted(names.split(", "))
        assert site.post("/tokenize", model="toy", prompt="a", x=1).headers["X-Ignored-Fields"] == "x"
        assert error_of(site.post(tools=[{"type": "function"}], **QUESTION))["param"] == "tools.0.function"
        assert error_of(site.post(temperature=9, **QUESTION))["param"] == "temperature"


def test_fields_ignored_with_every_request_are_a_warning_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored_header, "MOST_LOGGED", 3)
    caplog.set_level(logging.DEBUG, "parallax_core.server.ignored_header")
    with Site(ServerOptions(is_lenient=True)) as site:
        for name in ["colour", "colour", "weight", "colour", "height", "depth"]:
            assert site.post(**{**QUESTION, name: 1}).headers["X-Ignored-Fields"] == name
    found = [record for record in caplog.records if record.getMessage().startswith("ignored fields")]
    levels = [record.levelname for record in found]
    assert levels == ["WARNING", "DEBUG", "WARNING", "DEBUG", "WARNING", "DEBUG"]


def test_closed_gate_lets_nobody_in(site: Site) -> None:
    site.drain.is_closed = True
    response = site.post(**QUESTION)
    error_of(response, 503)
    assert response.headers["Retry-After"] == "5"
    assert site.client.get("/health").json()["status"] == "draining"
    assert site.client.get("/version").status_code == 200


async def test_gate_waits_for_what_is_under_way() -> None:
    drain = Drain()
    drain.enter()
    draining = asyncio.create_task(drain.drain(20))
    await asyncio.sleep(0)
    assert not draining.done()
    drain.leave()
    await asyncio.wait_for(draining, 5)
    drain.enter()
    await asyncio.wait_for(drain.drain(0.01), 5)


async def test_client_that_sends_its_body_too_slowly_is_given_up() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    async def receive() -> dict[str, object]:
        if not pieces:
            await asyncio.sleep(60)
        return pieces.pop()

    pieces: list[dict[str, object]] = [{"type": "http.request", "body": b"{", "more_body": True}]
    with pytest.raises(Exception, match="did not arrive within") as caught:
        await ReadTimeout(app, Drain(), 0.05)({"type": "http"}, receive, receive)  # type: ignore[arg-type]
    assert caught.value.status_code == 408  # type: ignore[attr-defined]
