"""The routes and fields of GradientHQ's Parallax over the whole server, with toy models."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import HttpSurface, InvalidRequest, hookimpl
from parallax_core.contracts.placement import DeviceProfile, NodeProfile
from parallax_core.contracts.status import NodeStatus, PlanStatus
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import extend_app
from parallax_server_gradient import plugin
from parallax_server_gradient.chat import SAMPLING, rewrite_chat
from parallax_server_gradient.cluster import Cluster, Limits, Replica, Stage
from parallax_server_gradient.cluster import Known as KnownModel
from parallax_server_gradient.init import Init, read_init
from parallax_server_gradient.routes import make_router
from plugins.cluster.tests.server.several import SeveralSite
from tests.unit.server.listening import Listening
from tests.unit.server.scripted import ScriptedSite

INIT = {"model_name": "other", "init_nodes_num": 1, "is_local_network": True}
GETS = {
    "/model/list": "model_list",
    "/cluster/status_json": "cluster_status",
    "/node/join/command": "node_join_command",
}


def extend(site: Any, module: Any = plugin) -> None:
    """Give a server the plugin."""
    record = PluginRecord(name="gradient", distribution="x", version="1", module="gradient", state="loaded")
    app: Any = site.http.app if isinstance(site, ScriptedSite) else site.app
    extend_app(app, site.models, PluginHost([(record, module)]))
    assert not record.reason


@pytest.fixture
def site() -> Iterator[SeveralSite]:
    with SeveralSite() as site:
        extend(site)
        yield site


@pytest.fixture
def chats(tmp_path: Path) -> Iterator[ScriptedSite]:
    with ScriptedSite(tmp_path) as site:
        extend(site)
        yield site


def data_of(site: SeveralSite, path: str) -> Any:
    answer = site.client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.json()["type"] == GETS[path]
    return answer.json()["data"]


def error_of(answer: Any, status: int = 400, kind: str = "scheduler_init") -> str:
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"type", "error"}
    assert answer.json()["type"] == kind
    return str(answer.json()["error"])


def init(site: SeveralSite, **fields: Any) -> Any:
    return site.client.post("/scheduler/init", json={**INIT, **fields})


def test_status_is_that_of_the_server(site: SeveralSite) -> None:
    status = data_of(site, "/cluster/status_json")
    assert (status["status"], status["model_name"], status["need_more_nodes"]) == ("available", "toy", False)
    assert status["max_running_request"] > 0
    assert (status["init_nodes_num"], status["node_join_command"]) == (1, None)
    [node] = status["node_list"]
    assert (node["status"], node["gpu_num"], node["gpu_memory"]) == ("available", 1, 0)


def test_status_before_the_server_is_ready_is_waiting() -> None:
    site = SeveralSite()
    extend(site)
    with site.client:
        assert data_of(site, "/cluster/status_json")["status"] == "waiting"


def test_machines_that_have_joined_are_listed_with_the_command_for_others(site: SeveralSite) -> None:
    device = DeviceProfile(memory=5, total_memory=24 * 2**30, flops=1e12, bandwidth=1e10, name="RTX4090")
    profile = NodeProfile(name="mini/7", device=device, disk_bandwidth=1e9)
    nodes = [NodeStatus(name="mini/7", host="mini", pid=7, address="tcp://mini:9", backends=(), profile=profile)]
    nodes.append(NodeStatus(name="pi/1", host="pi", pid=1, address="tcp://pi:9", backends=()))
    plan = PlanStatus(replicas=(), estimate=None, waits_for="1 more machine", join_command="parallax join CODE")
    site.models.list_nodes = lambda: nodes
    site.models.find_plan = lambda _: plan
    status = data_of(site, "/cluster/status_json")
    waiting = {"status": "waiting", "gpu_num": 1}
    assert status["node_list"] == [
        {"node_id": "mini/7", "gpu_name": "RTX4090", "gpu_memory": 24.0, **waiting},
        {"node_id": "pi/1", "gpu_name": "", "gpu_memory": 0, **waiting},
    ]
    assert (status["need_more_nodes"], status["init_nodes_num"]) == (True, 2)
    command = {"command": "parallax join CODE"}
    assert status["node_join_command"] == data_of(site, "/node/join/command") == command


def test_join_command_is_null_where_no_machine_can_join(site: SeveralSite) -> None:
    assert data_of(site, "/node/join/command") is None


async def test_status_is_followed_line_by_line() -> None:
    class Quick:
        """The plugin, with a short time between lines."""

        @staticmethod
        @hookimpl
        def parallax_extend_server(server: HttpSurface) -> None:
            server.add_router(make_router(server, interval_s=0.01))

    site = SeveralSite()
    extend(site, Quick)
    async with Listening(site=site) as server:
        client = await server.connect()
        client.send(b"GET /cluster/status HTTP/1.1\r\nHost: toy\r\n\r\n")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"application/x-ndjson" in head
        lines = []
        for _ in range(3):
            size = int(await client.reader.readuntil(b"\r\n"), 16)
            lines.append(json.loads(await client.reader.readexactly(size)))
            await client.reader.readexactly(2)
        assert {each["data"]["model_name"] for each in lines} == {"toy"}
        assert await server.answers(), "the server goes on"


def test_stream_ends_at_once_for_a_client_that_wants_no_body(site: SeveralSite) -> None:
    answer = site.client.head("/cluster/status")
    assert (answer.status_code, answer.content) == (200, b"")


def test_models_are_listed_with_their_memory(site: SeveralSite) -> None:
    assert {each["name"] for each in data_of(site, "/model/list")} == {"toy"}
    stages = [Stage("a", 13 * 2**29), Stage("b", 13 * 2**29)]
    replica = Replica("toy", "ready", stages, Limits(8))
    cluster = Cluster("toy", "ready", [KnownModel("toy"), KnownModel("other")], [replica, replica], [])
    assert cluster.write_models()["data"] == [{"name": "toy", "vram_gb": 20}, {"name": "other", "vram_gb": 0}]
    assert cluster.write_status()["data"]["max_running_request"] == 16


def test_model_is_switched_to(site: SeveralSite) -> None:
    answer = init(site)
    assert (answer.status_code, answer.json()) == (200, {"type": "scheduler_init", "data": INIT})
    assert site.finish()["state"] == "done"
    assert site.states == {"other": "ready", "toy": "unloaded"}
    assert data_of(site, "/cluster/status_json")["model_name"] == "other"
    site.change("unload", "other")
    site.finish()
    assert init(site, model_name="third", is_local_network=None).status_code == 200
    assert (site.finish()["action"], site.states["third"]) == ("load", "ready")


def test_model_that_is_served_is_left_as_it_is(site: SeveralSite) -> None:
    assert init(site, model_name="toy").json()["data"]["model_name"] == "toy"
    assert (site.show()["change"], site.states) == (None, {"toy": "ready"})


def test_model_may_be_called_by_another_name() -> None:
    with SeveralSite(ServerOptions(aliases={"gpt-4": "toy", "gpt-5": "other"})) as site:
        extend(site)
        assert init(site, model_name="gpt-4").json()["data"]["model_name"] == "gpt-4"
        assert (site.show()["change"], site.states) == (None, {"toy": "ready"})
        site.client.portal.call(site.changes.know, ["other"])  # type: ignore[union-attr]
        assert init(site, model_name="gpt-5").status_code == 200
        assert (site.finish()["state"], site.states) == ("done", {"other": "ready", "toy": "unloaded"})
        assert init(site, model_name="gpt-5").status_code == 200
        assert site.host.opened == ["other"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model_name": None}, "model_name is required"),
        ({"init_nodes_num": None}, "init_nodes_num is required"),
        ({"model_name": ""}, "model_name"),
        ({"model_name": 7}, "model_name"),
        ({"init_nodes_num": 0}, "init_nodes_num"),
        ({"init_nodes_num": "two"}, "init_nodes_num"),
        ({"init_nodes_num": 10**30}, "init_nodes_num"),
        ({"is_local_network": "yes"}, "is_local_network"),
        ({"colour": "red"}, "colour"),
        ({"model_name": "bad name"}, "bad name"),
    ],
)
def test_bad_field_is_refused_by_name(site: SeveralSite, fields: dict[str, Any], name: str) -> None:
    status = 404 if name == "bad name" else 400
    assert name in error_of(init(site, **fields), status)
    assert site.states == {"toy": "ready"}


def test_errors_have_that_systems_form(site: SeveralSite) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"{", b"[]", b"\xff", b"[" * 10**5):
        assert "not valid" in error_of(site.client.post("/scheduler/init", content=body, headers=headers))
    assert error_of(site.client.get("/scheduler/init"), 405)
    for path, kind in (("/scheduler/x", "scheduler_init"), ("/cluster/x", "cluster_status"), ("/model", "model_list")):
        assert error_of(site.client.get(path), 404, kind)
    site.host.gates["other"] = asyncio.Event()
    assert init(site).status_code == 200
    assert "another change is under way" in error_of(init(site, model_name="third"), 409)


def test_server_of_one_model_says_that_it_keeps_it(chats: ScriptedSite) -> None:
    assert chats.http.post("/scheduler/init", json={**INIT, "model_name": "toy"}).status_code == 200
    assert "serves one model" in error_of(chats.http.post("/scheduler/init", json=INIT), 409)


def test_routes_are_for_administrators() -> None:
    with SeveralSite(ServerOptions(keys=ApiKeys({"u": "user", "a": "admin"}))) as site:
        extend(site)
        for key, status in (("", 401), ("u", 403), ("a", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            answers = [site.client.get(path, headers=headers) for path in GETS]
            answers.append(site.client.post("/scheduler/init", json={**INIT, "model_name": "toy"}, headers=headers))
            for answer, kind in zip(answers, [*GETS.values(), "scheduler_init"], strict=True):
                assert (answer.status_code, answer.json()["type"]) == (status, kind)


def chat(site: ScriptedSite, **fields: Any) -> Any:
    site.engine.scripts.append("Hello there.")
    return site.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], **fields})


def test_sampling_params_are_the_fields_of_a_request(chats: ScriptedSite) -> None:
    params = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "max_new_tokens": 5,
        "min_new_tokens": 2,
        "stop_strs": [],
        "json_schema": None,
        "stop_token_ids": [3],
        "ignore_eos": True,
    }
    assert params.keys() == SAMPLING.keys()
    assert chat(chats, sampling_params=params, rid="abc", routing_table=[], lora_path=None).status_code == 200
    request = chats.engine.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 0.3, 0.4)
    assert (request.max_tokens, sampling.min_tokens, list(request.stop_ids)) == (5, 2, [3]), (
        "the end of text ends nothing"
    )
    schema = {"type": "object", "properties": {}}
    assert chat(chats, sampling_params={"json_schema": json.dumps(schema)}).status_code == 200
    assert chats.engine.requests[-1].grammar is not None


def test_extra_body_has_further_fields(chats: ScriptedSite) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "rid": "abc", "sampling_params": {"top_k": 3}}
    assert chat(chats, extra_body=fields, max_tokens=4).status_code == 200
    assert chats.prompt.endswith("<think>\n")
    assert (chats.engine.requests[-1].sampling.top_k, chats.engine.requests[-1].max_tokens) == (3, 4)
    assert chat(chats, extra_body={"top_k": 3}, sampling_params={"top_k": 3}, top_k=3).status_code == 200
    assert chat(chats, extra_body=None, sampling_params=None, rid=None).status_code == 200


def test_lora_path_names_the_adapter_as_the_model(chats: ScriptedSite) -> None:
    for fields in ({"lora_path": "law"}, {"extra_body": {"lora_path": "law"}}, {"model": "toy", "lora_path": "law"}):
        assert json.loads(rewrite_chat(json.dumps({"messages": [], **fields}).encode()))["model"] == "law"
    answer = chat(chats, lora_path="law")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"sampling_params": {"max_new_tokens": -1}}, "max_tokens"),
        ({"sampling_params": {"beam": 2}}, "sampling_params.beam"),
        ({"sampling_params": {"top_k": 3}, "top_k": 4}, "top_k"),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"extra_body": "x"}, "extra_body"),
        ({"extra_body": {"colour": "red"}}, "colour"),
        ({"extra_body": {"extra_body": {"top_k": 1}}}, "extra_body"),
        ({"rid": 7}, "rid"),
        ({"routing_table": ["a"]}, "routing_table"),
        ({"lora_path": ["x"]}, "lora_path"),
    ],
)
def test_field_of_a_chat_that_is_wrong_is_named(chats: ScriptedSite, fields: dict[str, Any], param: str) -> None:
    answer = chat(chats, **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert param.rpartition(".")[2] in answer.json()["error"]["message"]


def test_body_without_these_fields_is_left_as_it_is(chats: ScriptedSite) -> None:
    for body in (
        b"{",
        b'{"model": "toy", "messages": []}',
        b'["rid"]',
        b'{"rid": 1, "rid": 2}',
        b'{"rid": ' + b"[" * 10**5,
    ):
        assert rewrite_chat(body) == body
    headers = {"Content-Type": "application/json"}
    answer = chats.http.post("/v1/chat/completions", content=b'{"rid": "a", "rid": "b"}', headers=headers)
    assert "'rid' twice" in answer.json()["error"]["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rid", "top_k", "x"]), inner),
    max_leaves=8,
)
FIELDS = ["model", "extra_body", "sampling_params", "rid", "routing_table", "top_k", "model_name", "init_nodes_num"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.binary(max_size=60))
def test_anything_from_outside_is_read_or_refused(content: dict[str, Any], data: bytes) -> None:
    for body in (json.dumps(content).encode(), data, data + b'"rid"'):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(read_init(body), Init)
        with contextlib.suppress(InvalidRequest):
            assert isinstance(rewrite_chat(body), bytes)
