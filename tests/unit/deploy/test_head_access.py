"""The worker that a kind of deployment runs."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_core.base.errors import UsageError
from parallax_core.config.worker import WorkerSettings
from parallax_core.deploy.head_access import HeadAccess, WorkRequest
from parallax_core.plugins.host import PluginHost

ADDRESS = "tcp://10.0.0.5:9000"


def ask(**given: Any) -> tuple[WorkRequest, list[Any]]:
    """Return a request of a worker, and what is done: what is told, and what runs."""
    done: list[Any] = []

    def run_worker(settings: WorkerSettings, access: HeadAccess) -> None:
        done.append((settings, access))

    return WorkRequest(WorkerSettings(**given), PluginHost([]), run_worker, lambda: done.append("told")), done


def test_worker_runs_with_what_a_kind_of_deployment_has_found() -> None:
    request, done = ask(connect="tcp://10.0.0.9:1", drain=3.0)
    request.run(keys={"head": b"k"}, tries=2, connect=ADDRESS)
    told, (settings, access) = done
    assert told == "told"
    assert (settings.connect, settings.drain) == (ADDRESS, 3.0)
    assert settings.node
    assert (access.keys, access.tries, access.fixed) == ({"head": b"k"}, 2, None)


def test_worker_trusts_the_head_of_its_settings_where_a_kind_says_nothing() -> None:
    request, done = ask(connect=ADDRESS, trust_head="abcd", node="mini/1")
    request.run()
    settings, access = done[1]
    assert (settings.node, access.keys, access.tries) == ("mini/1", {"head": b"\xab\xcd"}, None)


@pytest.mark.parametrize(
    ("changed", "told"), [({}, "the address of the server is missing"), ({"conect": ADDRESS}, r"\[worker\].*'conect'")]
)
def test_worker_that_cannot_join_is_told_before_anything_else(changed: dict[str, Any], told: str) -> None:
    request, done = ask()
    with pytest.raises(UsageError, match=told):
        request.run(**changed)
    assert done == []
