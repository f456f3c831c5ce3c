"""The HTTP application over a toy engine: shapes, fields and errors. Real engines are asked in tests/e2e."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import msgspec

from parallax_core.api import ParallaxError, Sampling
from parallax_core.models.generation_config import RequestDefaults
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import MAX_BODY_BYTES, ServerOptions
from parallax_core.server.response import SseResponse
from tests.unit.server.letters import Site, answer, error_of, events


def test_stop_strings_end_the_answer_before_them(site: Site) -> None:
    whole = answer("hello", 8)
    stop = whole[3:5]
    choice = site.ask(max_tokens=8, stop=[stop]).json()["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_sampling_fields_reach_the_stage(site: Site) -> None:
    seen: list[Sampling] = []
    site.stage.before_open = lambda spec: seen.append(spec.sampling)
    site.ask(max_tokens=1, temperature=0.5, top_p=0.25, top_k=3, seed=-1)
    site.ask(max_tokens=1)
    site.ask(max_tokens=1)
    assert seen[0] == Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=2**64 - 1)
    site.ask(max_tokens=1, temperature=1e-300)
    assert seen[1].temperature == seen[3].temperature == 0
    assert seen[1].seed != seen[2].seed


def test_recommended_sampling_holds_where_a_request_says_nothing(site: Site) -> None:
    seen: list[Sampling] = []
    recommended = Sampling(temperature=0.2, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.5)
    site.text.defaults = RequestDefaults(recommended, max_tokens=6)
    site.stage.before_open = lambda spec: seen.append(spec.sampling)
    lengths = [
        site.ask(seed=1, ignore_eos=True).json()["usage"]["completion_tokens"],
        site.ask(seed=1, max_tokens=9, temperature=0.7, top_p=1, repetition_penalty=1).json()["usage"][
            "completion_tokens"
        ],
        site.complete(seed=1).json()["usage"]["completion_tokens"],
    ]
    assert lengths == [6, 9, 16]
    assert seen[0] == seen[2] == msgspec.structs.replace(recommended, seed=1)
    assert seen[1] == Sampling(temperature=0.7, top_k=5, min_p=0.01, seed=1)


def test_body_that_is_too_large_is_refused_before_it_is_read(site: Site) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    headers = {"Content-Type": "application/json"}
    for content in (b" " * (MAX_BODY_BYTES + 1), pieces()):
        response = site.client.post("/v1/chat/completions", content=content, headers=headers)
        assert "more than" in error_of(response, 413)["message"]
    assert site.ask(max_tokens=1).status_code == 200


def test_prompt_that_is_too_long_is_refused(site: Site) -> None:
    error = error_of(site.ask("a" * 400))
    assert error["param"] == "messages"
    assert "400 tokens" in error["message"]


def test_unknown_model_is_a_404(site: Site) -> None:
    error = error_of(site.post(model="other", messages=[{"role": "user", "content": "x"}]), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    error_of(site.client.get("/v1/models/other"), 404)


def test_server_is_unhealthy_until_its_engine_is_ready() -> None:
    site = Site()
    with site.client:
        assert site.client.get("/ready").status_code == 503
        assert site.client.get("/health").status_code == 503
        response = site.ask()
        error_of(response, 503)
        assert response.headers["Retry-After"] == "1"
        site.client.portal.call(site.router.start)  # type: ignore[union-attr]
        assert site.client.get("/health").json() == {"status": "ready", "reason": ""}
        site.client.portal.call(site.router.stop)  # type: ignore[union-attr]
        assert site.client.get("/health").status_code == 503


def test_failure_of_the_model_is_an_error_the_client_sees(site: Site) -> None:
    def fail(batch: object) -> None:
        message = "out of luck"
        raise ParallaxError(message)

    site.stage.before_step = fail
    assert "out of luck" in error_of(site.ask(), 500)["message"]
    *_, last = events(site.ask(stream=True))
    assert "out of luck" in last["error"]["message"]
    assert site.client.get("/health").status_code == 200


async def test_client_that_is_gone_before_the_first_event_stops_its_generation() -> None:
    class Endless:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    async def events() -> AsyncIterator[dict[str, object]]:
        yield {"never": "asked for"}

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        del message
        raise OSError

    stream = Endless()
    with contextlib.suppress(Exception):
        await SseResponse(events(), stream)({"type": "http", "asgi": {}}, receive, send)  # type: ignore[arg-type]
    assert stream.is_closed


def test_every_route_but_health_and_version_asks_for_a_key() -> None:
    with Site(ServerOptions(keys=ApiKeys({"secret": "user", "other": "admin"}))) as site:
        paths = site.app.openapi()["paths"]
        routes = [(path, method.upper()) for path, methods in paths.items() for method in methods]
        assert len(routes) == 47
        for path, method in [*routes, ("/openapi.json", "GET"), ("/nowhere", "GET")]:
            status = site.client.request(method, path).status_code
            assert (status == 401) == (path not in {"/health", "/ready", "/version"}), (method, path, status)
        for header in ("Bearer wrong", "secret", "Basic secret", "Bearer", ""):
            assert site.client.get("/v1/models", headers={"Authorization": header}).status_code == 401
        for header in ("Bearer secret", "bearer other"):
            assert site.client.get("/v1/models", headers={"Authorization": header}).status_code == 200
