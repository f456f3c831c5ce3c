"""What ``/metrics`` shows is what happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from prometheus_client.parser import text_string_to_metric_families

from parallax_core.base.errors import StageLost
from parallax_core.contracts.engine import EngineStats
from parallax_core.node import backoff
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import TOY, Site, answer, events


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def read(site: Site) -> dict[tuple[str, str], float]:
    """Return the value of each sample, by name and the values of its labels."""
    text = site.client.get("/metrics").text
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_how_they_ended(site: Site) -> None:
    site.ask(max_tokens=3)
    site.ask(max_tokens=3, stream=True)
    site.ask(max_tokens=3, stop=["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"])
    found = read(site)
    outcomes = {labels: value for (name, labels), value in found.items() if name == "parallax_requests_total"}
    assert sum(outcomes.values()) == 3
    assert outcomes["length"] >= 2


def test_times_are_measured_once_for_each_request_and_gap(site: Site) -> None:
    site.ask(max_tokens=4)
    site.complete(["ab", "cd"], max_tokens=3)
    found = read(site)
    for name in ("time_to_first_token", "request", "queue", "prefill", "decode", "stages", "hops", "detokenize"):
        assert found[f"parallax_{name}_seconds_count", ""] == 3, name
    assert found["parallax_inter_token_seconds_count", ""] == 3 + 2 + 2
    parts = sum(found[f"parallax_{name}_seconds_sum", ""] for name in ("queue", "prefill", "decode"))
    assert 0 < parts <= found["parallax_request_seconds_sum", ""]
    assert found["parallax_stages_seconds_sum", ""] > 0
    assert found["parallax_hops_seconds_sum", ""] > 0
    assert found["parallax_detokenize_seconds_sum", ""] > 0


def test_tokens_and_steps_are_those_of_the_engine(site: Site) -> None:
    site.ask("hello world", max_tokens=4)
    site.ask("hello world", max_tokens=4)
    found = read(site)
    assert found["parallax_prompt_tokens_total", "toy,0"] == 22
    assert found["parallax_cached_tokens_total", "toy,0"] == 10
    assert found["parallax_output_tokens_total", "toy,0"] == 8
    assert found["parallax_steps_total", "toy,0"] >= 8
    assert found["parallax_preemptions_total", "toy,0"] == 0
    assert found["parallax_requests_running", "toy,0"] == found["parallax_requests_waiting", "toy,0"] == 0
    assert 0 < found["parallax_pages_used", "full,toy,0,0"] <= found["parallax_pages_total", "full,toy,0,0"] == 200


def test_request_whose_stage_is_lost_is_counted_as_replayed_with_its_pause(site: Site) -> None:
    steps = count()

    def lose(batch: object) -> None:
        if next(steps) == 2:
            site.stage = TOY.open(num_pages=200, context=400, max_batch_tokens=64)
            raise StageLost("out of order")

    site.stage.before_step = lose
    assert site.ask("hello", max_tokens=6).json()["choices"][0]["message"]["content"] == answer("hello", 6)
    found = read(site)
    assert found["parallax_recovery_seconds_count", ""] == 1
    assert 0 < found["parallax_recovery_seconds_sum", ""] < found["parallax_request_seconds_sum", ""]
    assert found["parallax_requests_replayed_total", "toy,0"] == found["parallax_stage_losses_total", "toy,0"] == 1
    assert found["parallax_requests_lost_total", "toy,0"] == 0


def test_requests_of_an_engine_that_is_given_up_are_counted_as_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0,))

    def lose(batch: object) -> None:
        site.stage = TOY.open(num_pages=200, context=400, max_batch_tokens=64)
        site.stage.before_step = fail
        raise StageLost("out of order")

    def fail(batch: object) -> None:
        raise StageLost("out of order again")

    steps = count()
    site.stage.before_step = lambda batch: lose(batch) if next(steps) == 2 else None
    site.ask("hello", max_tokens=6)
    assert read(site)["parallax_requests_lost_total", "toy,0"] == 1


def test_stream_that_fails_is_counted_as_an_error(site: Site) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("out of luck")

    site.stage.before_step = fail
    assert "error" in events(site.ask(stream=True))[-1]
    assert read(site)["parallax_requests_total", "error"] == 1


def test_errors_are_counted_by_type() -> None:
    with Site(ServerOptions(keys=ApiKeys({"k": "admin"}))) as site:
        site.client.get("/v1/models")
        site.client.headers["Authorization"] = "Bearer k"
        site.ask(temperature=9)
        site.ask(colour="red")
        site.post(model="other", messages=[{"role": "user", "content": "x"}])
        site.client.get("/nowhere")
        site.client.get("/v1/chat/completions")
        site.ask(timeout=1e-9)
        site.ask(timeout=1e-9, stream=True)
        site.client.portal.call(site.engine.stop)  # type: ignore[union-attr]
        assert site.client.get("/health").status_code == 503
        site.ask()
        found = read(site)
    assert {kind: value for (name, kind), value in found.items() if name == "parallax_errors_total"} == {
        "authentication_error": 1,
        "conflict_error": 0,
        "invalid_request_error": 3,
        "not_found_error": 2,
        "permission_error": 0,
        "rate_limit_error": 0,
        "server_error": 0,
        "service_unavailable_error": 1,
        "timeout_error": 2,
    }


def test_metrics_are_there_before_the_engine_is() -> None:
    site = Site()
    with site.client:
        assert site.client.get("/metrics").status_code == 200


def test_engine_is_asked_on_the_event_loop_where_it_changes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    stats = site.engine.stats

    def note() -> tuple[EngineStats, ...]:
        threads.add(threading.get_ident())
        return stats()

    monkeypatch.setattr(site.engine, "stats", note)
    assert site.client.get("/metrics").status_code == 200
    assert threads == {site.client.portal.call(threading.get_ident)}  # type: ignore[union-attr]
