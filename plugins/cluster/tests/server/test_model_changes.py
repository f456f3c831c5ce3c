"""Models that are loaded, unloaded and switched while the server runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from parallax_cluster.server.change_request import WantedChange
from parallax_cluster.server.model_routes import KnownModelsReply, ModelChangeReply
from parallax_core.base.errors import BackendFailed, Overloaded, ParallaxError
from parallax_core.server import served_models
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from plugins.cluster.tests.server.several import SeveralSite, answer_of
from tests.unit.node.cluster import until
from tests.unit.server.letters import Site, answer, error_of

BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 6}


@pytest.fixture
def several() -> Iterator[SeveralSite]:
    with SeveralSite() as site:
        yield site


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    found: str = choice["text"]
    return found


def test_each_request_is_answered_by_the_model_that_it_names(several: SeveralSite) -> None:
    begun = several.change("load", "other")
    assert begun.status_code == 202
    assert msgspec.json.decode(begun.content, type=ModelChangeReply).state == "loading"
    assert several.finish()["state"] == "done"
    for _ in range(2):
        assert text_of(several.complete_with("toy")) == answer("hello", 6)
        assert text_of(several.complete_with("other")) == answer_of("other", "hello", 6)
    assert several.complete_with("other").json()["model"] == "other"
    assert error_of(several.complete_with("nobody"), 404)["code"] == "model_not_found"
    assert text_of(several.post("/v1/completions", model="toy", **BODY)) == answer("hello", 6)
    assert [each["id"] for each in several.client.get("/v1/models").json()["data"]] == ["toy", "other"]


@pytest.mark.parametrize("small", [0, 10**6])
def test_model_is_found_in_a_body_of_any_size(
    several: SeveralSite, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(served_models, "SMALL", small)
    several.change("load", "other")
    several.finish()
    assert several.complete_with("other").json()["model"] == "other"
    assert several.complete_with("toy").json()["model"] == "toy"
    assert error_of(several.complete_with("nobody"), 404)["code"] == "model_not_found"
    headers = {"Content-Type": "application/json"}
    for body in (b"{", b'{"model": 1}', b"[" * 100_000):
        assert error_of(several.client.post("/v1/completions", content=body, headers=headers))["message"]


@pytest.mark.parametrize("step", ["gates", "starts"])
def test_switch_keeps_the_old_model_until_the_new_one_answers(several: SeveralSite, step: str) -> None:
    gate = getattr(several.host, step)["other"] = asyncio.Event()
    several.change("switch", "other")
    assert several.states == {"toy": "ready", "other": "loading"}
    assert text_of(several.complete_with("toy")) == answer("hello", 6)
    refusal = several.complete_with("other")
    assert "is being loaded" in error_of(refusal, 503)["message"]
    several.client.portal.call(gate.set)  # type: ignore[union-attr]
    change = several.finish()
    assert (change["state"], change["replaces"], change["error"]) == ("done", "toy", None)
    assert several.states == {"other": "ready", "toy": "unloaded"}
    assert text_of(several.complete_with("other")) == answer_of("other", "hello", 6)
    error = error_of(several.complete_with("toy"), 503)
    assert (error["code"], error["param"]) == ("model_not_loaded", "model")
    assert "`parallax models load toy`" in error["message"]
    statuses = {each["id"]: each["status"] for each in several.client.get("/v1/models").json()["data"]}
    assert statuses == {"other": "ready", "toy": "unloaded"}
    assert several.client.get("/v1/models/toy").json()["max_model_len"] is None
    metrics = several.client.get("/metrics").text
    assert 'parallax_steps_total{model="other"' in metrics
    assert 'model="toy"' not in metrics


def hold(several: SeveralSite) -> threading.Event:
    """Have the steps of the first model wait until the event is set."""
    gate = threading.Event()

    def wait(_: object) -> None:
        gate.wait(20)

    several.stage.before_step = wait
    return gate


def ask_aside(several: SeveralSite, answers: list[Any]) -> threading.Thread:
    asking = threading.Thread(target=lambda: answers.append(several.complete_with("toy")))
    asking.start()
    return asking


def wait_for(several: SeveralSite, requests: int) -> None:
    for _ in range(2000):
        if next(each["requests"] for each in several.show()["data"] if each["id"] == "toy") == requests:
            return
    pytest.fail("the request has not arrived")


def test_running_requests_of_the_old_model_end_before_it_is_unloaded(several: SeveralSite) -> None:
    gate, answers = hold(several), list[Any]()
    asking = ask_aside(several, answers)
    wait_for(several, 1)
    several.change("switch", "other")
    while several.states["toy"] != "draining":
        pass
    assert "is being unloaded" in error_of(several.complete_with("toy"), 503)["message"]
    assert text_of(several.complete_with("other")) == answer_of("other", "hello", 6)
    gate.set()
    asking.join(20)
    assert text_of(answers[0]) == answer("hello", 6)
    assert several.finish()["state"] == "done"


def test_requests_that_outlast_the_drain_end_with_an_error(several: SeveralSite) -> None:
    gate, answers = hold(several), list[Any]()
    asking = ask_aside(several, answers)
    wait_for(several, 1)
    several.change("unload", "toy", drain_seconds=0.1)
    while several.states["toy"] != "unloaded":
        pass
    gate.set()
    asking.join(20)
    assert "the server is shutting down" in error_of(answers[0], 503)["message"], "as a toy's host says"


@pytest.mark.parametrize("drain_first", [False, True])
def test_model_that_cannot_be_loaded_leaves_the_old_one(several: SeveralSite, drain_first: bool) -> None:
    several.host.faults["other"] = BackendFailed("the weights are damaged", "fetch them again")
    several.change("switch", "other", drain_first=drain_first)
    change = several.finish()
    assert (change["state"], change["error"]) == ("failed", "the weights are damaged; fetch them again")
    assert several.states == {"toy": "ready"}
    assert several.host.opened == (["other", "toy"] if drain_first else ["other"])
    assert text_of(several.complete_with("toy")) == answer("hello", 6)
    assert error_of(several.complete_with("other"), 404)["code"] == "model_not_found"


def test_typing_error_in_a_load_is_not_listed(several: SeveralSite) -> None:
    several.change("load", "/srv/modle")
    assert "there is no model '/srv/modle'" in several.finish()["error"]
    assert [each["id"] for each in several.client.get("/v1/models").json()["data"]] == ["toy"]
    several.change("load", "other")
    assert several.finish()["state"] == "done"


def test_model_that_was_loaded_once_stays_known_when_it_cannot_be_loaded(several: SeveralSite) -> None:
    for action in ("load", "unload"):
        several.change(action, "other")
        several.finish()
    several.host.faults["other"] = BackendFailed("/secret/weights are damaged", "fetch them again")
    several.change("load", "other")
    change = several.finish()
    shown = msgspec.convert(several.show(), KnownModelsReply)
    assert {each.id: each.error for each in shown.data}["other"] == change["error"]
    error = error_of(several.complete_with("other"), 503)["message"]
    assert "could not be loaded the last time; an administrator sees why with `parallax models served`" in error
    assert "/secret" not in error


def test_models_are_changed_by_each_of_their_names() -> None:
    with SeveralSite(ServerOptions(aliases={"mine": "toy", "other": "toy"})) as several:
        assert "'toy' is loaded already" in error_of(several.change("load", "mine"), 409)["message"]
        assert several.show()["data"][0]["names"] == ["mine", "other", "toy"]
        assert several.change("switch", "third", replaces="mine").status_code == 202
        assert several.finish()["state"] == "done"
        assert several.change("load", "mine").json()["model"] == "toy"
        assert (several.finish()["state"], several.states["toy"]) == ("done", "ready")


def test_model_that_is_not_loaded_can_be_forgotten(several: SeveralSite) -> None:
    several.change("load", "other")
    several.finish()
    error = error_of(several.change("forget", "other"), 409)["message"]
    assert "the model 'other' is ready; unload it first: `parallax models unload other`" in error
    several.change("unload", "other")
    several.finish()
    several.change("forget", "other")
    assert several.finish()["state"] == "done"
    assert several.states == {"toy": "ready"}
    assert error_of(several.complete_with("other"), 404)["code"] == "model_not_found"
    assert error_of(several.change("forget", "other"), 404)["code"] == "model_not_found"
    several.change("load", "other")
    assert several.finish()["state"] == "done"


def test_it_says_why_both_models_could_not_be_loaded(several: SeveralSite) -> None:
    several.host.faults = {"other": BackendFailed("the weights are damaged"), "toy": BackendFailed("so are these")}
    several.change("switch", "other", drain_first=True)
    error = several.finish()["error"]
    assert error == "the weights are damaged; and 'toy' could not be loaded again: so are these"
    assert several.states == {"toy": "unloaded"}
    del several.host.faults["toy"]
    several.change("load", "toy")
    assert several.finish()["state"] == "done"


def test_only_one_change_at_a_time(several: SeveralSite) -> None:
    gate = several.host.gates["other"] = asyncio.Event()
    assert several.change("switch", "other").status_code == 202
    for change in (("switch", "third"), ("unload", "toy"), ("load", "other")):
        error = error_of(several.change(*change), 409)
        assert (error["type"], error["code"]) == ("conflict_error", "conflict")
        assert "another change is under way: switch 'other'" in error["message"]
    several.client.portal.call(gate.set)  # type: ignore[union-attr]
    assert several.finish()["state"] == "done"
    assert several.change("switch", "third").status_code == 202
    assert several.finish()["state"] == "done"


def test_recent_changes_are_shown_by_their_ids(several: SeveralSite) -> None:
    begun = [several.change("load", "other").json()["id"]]
    several.finish()
    for action in ("unload", "load") * 9:
        begun.insert(0, several.change(action, "other").json()["id"])
        several.finish()
    shown = msgspec.convert(several.show(), KnownModelsReply)
    assert shown.change is not None
    assert [shown.change.id, *(each.id for each in shown.earlier)] == begun[:16]


def test_models_that_were_loaded_before_a_restart_are_loaded_again(several: SeveralSite) -> None:
    for model in ("other", "third"):
        several.change("load", model)
        assert several.finish()["state"] == "done"
    several.change("unload", "other")
    several.finish()
    assert several.host.remembered == ["third"]
    with SeveralSite() as again:
        again.host.remembered = ["missing", "third", "toy"]
        again.client.portal.call(again.changes.restore)  # type: ignore[union-attr]
        assert again.states == {"toy": "ready", "third": "ready", "missing": "unloaded"}
        assert text_of(again.complete_with("third")) == answer_of("third", "hello", 6)
        assert again.host.remembered == ["third"]


def test_models_that_wait_to_be_loaded_again_are_not_forgotten(several: SeveralSite) -> None:
    several.host.remembered = ["other", "third"]
    gate = several.host.gates["third"] = asyncio.Event()
    restoring = several.client.portal.start_task_soon(several.changes.restore)  # type: ignore[union-attr]
    several.wait_for("third", "loading")
    assert several.states["other"] == "ready"
    assert several.host.remembered == ["other", "third"], "the server may be killed now"
    several.client.portal.call(gate.set)  # type: ignore[union-attr]
    restoring.result(20)
    assert several.states["third"] == "ready"


def test_last_model_may_be_unloaded_and_loaded_again(several: SeveralSite) -> None:
    several.change("switch", "other")
    several.finish()
    several.change("unload", "other")
    assert several.finish()["state"] == "done"
    health = several.client.get("/health")
    assert (health.status_code, "no model is loaded" in health.json()["reason"]) == (503, True)
    assert error_of(several.complete_with("other"), 503)["code"] == "model_not_loaded"
    assert "'toy', 'other'" in error_of(several.post("/v1/completions", **BODY))["message"]
    cluster = several.client.get("/v1/cluster").json()
    assert (cluster["model"], cluster["replicas"]) == ("", [])
    several.change("load", "other")
    several.finish()
    assert text_of(several.complete_with("other")) == answer_of("other", "hello", 6)
    assert several.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"action": "load", "model": "toy"}, 409, None, "is loaded already"),
        ({"action": "unload", "model": "nobody"}, 404, "model", "does not exist"),
        ({"action": "switch", "model": "other", "replaces": "nobody"}, 404, "model", "does not exist"),
        ({"action": "load", "model": "bad name"}, 404, None, "names no model"),
        ({"action": "load", "model": ""}, 400, "model", "must not be empty"),
        ({"action": "load"}, 400, "model", "missing"),
        ({"action": "melt", "model": "other"}, 400, "action", "'load', 'unload', 'switch' or 'forget'"),
        ({"action": "load", "model": "other", "replaces": "toy"}, 400, "replaces", "for switching only"),
        ({"action": "unload", "model": "toy", "drain_first": True}, 400, "drain_first", "for switching only"),
        ({"action": "unload", "model": "toy", "drain_seconds": -1}, 400, "drain_seconds", "at least 0"),
        ({"action": "load", "model": "other", "wait": True}, 400, "wait", "unknown field"),
    ],
)
def test_change_that_makes_no_sense_is_refused(
    several: SeveralSite, body: dict[str, Any], status: int, param: str | None, message: str
) -> None:
    error = error_of(several.client.post("/v1/cluster/models", json=body), status)
    assert (error["param"], message in error["message"]) == (param, True), error
    assert several.states == {"toy": "ready"}


def test_switch_has_to_say_which_of_several_models_it_replaces(several: SeveralSite) -> None:
    several.change("load", "other")
    several.finish()
    assert error_of(several.change("switch", "third"))["param"] == "replaces"
    several.change("switch", "third", replaces="toy")
    assert several.finish()["replaces"] == "toy"
    assert several.states == {"other": "ready", "third": "ready", "toy": "unloaded"}


def test_progress_of_each_node_is_shown(several: SeveralSite) -> None:
    several.change("load", "other")
    several.finish()
    [node] = next(each for each in several.show()["data"] if each["id"] == "other")["nodes"]
    assert node == {
        "node": "n/1",
        "layers": [0, 2],
        "task": "loading weights",
        "done": 5,
        "total": 10,
        "unit": "bytes",
    }


def test_server_whose_stages_were_chosen_says_that_it_keeps_its_model(site: Site) -> None:
    response = site.client.post("/v1/cluster/models", json={"action": "load", "model": "other"})
    assert "`parallax run`" in error_of(response, 409)["message"]
    assert site.client.get("/v1/cluster/models").json()["data"][0]["id"] == "toy"


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("wrong", 401), ("u", 403), ("m", 403), ("a", 202)])
def test_only_administrators_change_models(key: str | None, status: int) -> None:
    keys = ApiKeys({"u": "user", "m": "metrics", "a": "admin"})
    with SeveralSite(ServerOptions(keys=keys)) as site:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"action": "load", "model": "other"}
        assert site.client.post("/v1/cluster/models", json=body, headers=headers).status_code == status
        shown = site.client.get("/v1/cluster/models", headers=headers).status_code
        assert shown == {202: 200}.get(status, status)


def test_request_for_a_known_model_loads_it_if_that_is_wanted() -> None:
    with SeveralSite(on_demand=True) as site:
        site.changes.know(["other", "missing"])
        assert site.show()["load_on_demand"]
        assert text_of(site.complete_with("other")) == answer_of("other", "hello", 6)
        assert site.states == {"toy": "ready", "other": "ready", "missing": "unloaded"}
        for _ in range(2):  # the second time, the server does not try again so soon
            assert "could not be loaded" in error_of(site.complete_with("missing"), 503)["message"]
        assert "there is no model 'missing'" in {each["id"]: each["error"] for each in site.show()["data"]}["missing"]
        assert site.host.opened == ["other", "missing"]
        assert error_of(site.complete_with("nobody"), 404)["code"] == "model_not_found"


def test_requests_that_come_while_a_model_is_loaded_on_demand_wait_for_it() -> None:
    with SeveralSite(on_demand=True) as site:
        site.changes.know(["other"])
        gate, answers = asyncio.Event(), list[Any]()
        site.host.gates["other"] = gate
        several = [threading.Thread(target=lambda: answers.append(site.complete_with("other"))) for _ in range(3)]
        for each in several:
            each.start()
        while site.host.opened != ["other"]:
            pass
        site.client.portal.call(gate.set)  # type: ignore[union-attr]
        for each in several:
            each.join(20)
        assert [text_of(each) for each in answers] == [answer_of("other", "hello", 6)] * 3
        assert site.host.opened == ["other"]


async def test_so_many_requests_wait_for_models_at_most() -> None:
    site = SeveralSite(on_demand=True)
    site.changes.know(["other"])
    known, gate = site.models.known["other"], asyncio.Event()
    site.host.gates["other"] = gate
    load = site.models.load_on_demand
    assert load is not None
    waiting = [asyncio.ensure_future(load(known)) for _ in range(256)]
    await until(lambda: site.host.opened == ["other"])
    with pytest.raises(Overloaded, match="256 requests wait for models to be loaded"):
        await load(known)
    gate.set()
    await asyncio.gather(*waiting)
    await load(known)
    await site.changes.stop()
    await site.models.stop()


async def test_model_that_was_never_ready_is_not_unloaded() -> None:
    site = SeveralSite()
    site.models.known["toy"].state = "loading"
    with pytest.raises(ParallaxError, match="is still being loaded"):
        site.changes.begin(WantedChange(action="unload", model="toy"))
