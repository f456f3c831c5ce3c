"""How much one caller may have under way, and how urgent it may be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, error_of, events

KEYS = ApiKeys({"alice": "user", "bob": "user", "root": "admin"})


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(site: Site, key: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hello"}]
    return site.post(headers=bearer(key), model="toy", messages=messages, **fields)


def complete(site: Site, key: str, **fields: Any) -> Any:
    return site.post("/v1/completions", headers=bearer(key), **{"model": "toy", "prompt": "hello", **fields})


@contextmanager
def busy(site: Site, key: str, **fields: Any) -> Iterator[None]:
    """Have a request under way, until this is left."""
    release, entered = threading.Event(), threading.Event()

    def wait(batch: object) -> None:
        entered.set()
        release.wait(20)

    site.stage.before_step = wait
    thread = threading.Thread(target=lambda: ask(site, key, **fields))
    thread.start()
    try:
        assert entered.wait(20)
        yield
    finally:
        site.stage.before_step = lambda _: None
        release.set()
        thread.join()


def running(site: Site) -> dict[bytes, int]:
    return dict(site.quota._running)


def test_tokens_under_way_are_counted_for_each_key() -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=100)) as site:
        with busy(site, "alice", max_tokens=60):
            error = error_of(response := ask(site, "alice", max_tokens=41), 429)
            assert "you have 60 output tokens running, and may have 100" in error["message"]
            assert int(response.headers["Retry-After"]) >= 1
            assert sum(running(site).values()) == 60
        assert ask(site, "alice", max_tokens=100).status_code == 200
        assert running(site) == {}


def test_other_keys_go_on_while_one_has_spent_its_budget() -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=10)) as site:
        with busy(site, "alice", max_tokens=10):
            error_of(ask(site, "alice", max_tokens=1), 429)
            site.stage.before_step = lambda _: None
            answered: list[int] = []
            other = threading.Thread(target=lambda: answered.append(ask(site, "bob", max_tokens=10).status_code))
            other.start()
            deadline = threading.Event()
            while sum(running(site).values()) < 20 and not deadline.wait(0.005):
                pass
        other.join()
    assert answered == [200]


@pytest.mark.parametrize(
    ("fields", "total"),
    [
        ({"prompt": ["a"] * 256, "n": 128, "max_tokens": 1}, 32768),
        ({"prompt": ["a", "b"], "n": 2, "max_tokens": 300}, 1200),
        ({"prompt": "a", "best_of": 3, "max_tokens": 334}, 1002),
        ({"prompt": "a", "max_tokens": 1001}, 1001),
    ],
)
def test_batch_counts_as_what_it_is(fields: dict[str, Any], total: int) -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=1000)) as site:
        error = error_of(complete(site, "alice", **fields), 400)
        assert error["param"] == "max_tokens"
        assert f"are {total} output tokens, and a client may have 1000 running" in error["message"]
        assert running(site) == {}


def test_answer_without_a_greatest_length_gets_no_more_than_the_budget() -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=30)) as site:
        answer = ask(site, "alice").json()
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (30, "length")
        assert ask(site, "alice", n=3).json()["usage"]["completion_tokens"] == 30
        error = error_of(ask(site, "alice", n=31), 400)
        assert error["param"] == "max_completion_tokens"
    with Site(ServerOptions(keys=KEYS, max_output_tokens=10_000)) as site:
        assert ask(site, "alice").json()["usage"]["total_tokens"] == 400


def test_budget_comes_back_however_a_request_ends() -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=100)) as site:
        assert complete(site, "alice", prompt=["a", "b"], max_tokens=5).status_code == 200
        assert events(ask(site, "alice", max_tokens=5, stream=True))[-1] == "[DONE]"
        error_of(ask(site, "alice", max_tokens=99, timeout=1e-9), 408)
        error_of(complete(site, "alice", prompt=["a", "b" * 500], max_tokens=5), 400)
        error_of(ask(site, "alice", max_tokens=50, min_tokens=60), 400)

        def fail(batch: object) -> None:
            raise RuntimeError("out of luck")

        site.stage.before_step = fail
        error_of(ask(site, "alice", max_tokens=50), 500)
        assert running(site) == {}


def test_each_prompt_of_a_batch_gives_back_its_own_share() -> None:
    with Site(ServerOptions(keys=KEYS, max_output_tokens=1000)) as site:
        seen: list[int] = []
        site.stage.before_step = lambda _: seen.append(sum(running(site).values()))
        complete(site, "alice", prompt=["a", "b" * 60, "c" * 120], max_tokens=10)
        assert max(seen) == 30
        assert {10, 20} & set(seen)


def test_without_keys_an_address_has_the_budget() -> None:
    with Site(ServerOptions(max_output_tokens=10)) as site:
        assert site.ask(max_tokens=10).status_code == 200
        error_of(site.ask(max_tokens=11), 400)


def test_users_request_may_be_less_urgent_and_not_more() -> None:
    with Site(ServerOptions(keys=KEYS)) as site:
        for priority in (0, 1, 2**31 - 1, None):
            assert ask(site, "alice", max_tokens=1, priority=priority).status_code == 200
        for priority in (-1, -(2**31)):
            error = error_of(ask(site, "alice", max_tokens=1, priority=priority), 400)
            assert error["param"] == "priority"
            assert (
                f"'priority' is {priority}, and with a key of the role 'user' it must be 0 or more" in error["message"]
            )
            assert ask(site, "root", max_tokens=1, priority=priority).status_code == 200


def test_least_priority_of_users_is_a_setting() -> None:
    with Site(ServerOptions(keys=KEYS, min_priority=-5)) as site:
        assert ask(site, "alice", max_tokens=1, priority=-5).status_code == 200
        error_of(ask(site, "alice", max_tokens=1, priority=-6), 400)
    with Site(ServerOptions()) as site:
        assert site.ask(max_tokens=1, priority=-(2**31)).status_code == 200
