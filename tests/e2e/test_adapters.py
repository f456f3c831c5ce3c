"""LoRA adapters of a server whose model is split over processes, with vLLM's routes and OpenAI's client."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import AdapterFiles, Server
from tests.support.tiny_adapters import make_matrices, write_adapter

PROMPTS = ("The capital of France is", "Once upon a time", "One, two, three")
STAGES = ("--backend", "torch", "--stages", "3", "--dtype", "float32")
LENGTH = 40
WAIT_S = 60


def post(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.url + path, timeout=WAIT_S) as answer:
        return json.load(answer)


def stream(server: Server, model: str, prompt: str, begun: Callable[[], None] = lambda: None) -> str:
    """Return the text of an answer, by OpenAI's client; ``begun`` is called after its tenth event."""
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=WAIT_S)
    extra = {"ignore_eos": True}
    made = client.completions.create(
        model=model, prompt=prompt, max_tokens=LENGTH, temperature=0, stream=True, extra_body=extra
    )
    text = ""
    for number, event in enumerate(made):
        text += event.choices[0].text
        if number == 10:
            begun()
    return text


def ask_all(server: Server, models: Sequence[str]) -> list[str]:
    """Return the answers of several models to several prompts, asked at the same time."""
    asked = [(model, prompt) for model in models for prompt in PROMPTS]
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda each: stream(server, *each), asked))


def test_adapters_are_models_of_their_names_and_survive_the_loss_of_a_stage(
    serve: Callable[..., Server], adapter_files: AdapterFiles
) -> None:
    merged = serve(adapter_files.merged, "--backend", "torch", "--dtype", "float32")
    wanted = [stream(merged, "", prompt) for prompt in PROMPTS]
    server = serve(adapter_files.model, *STAGES, "--adapter", f"first={adapter_files.adapters[0]}")
    name = get(server, "/models")["data"][0]["id"]
    assert [(each["id"], each.get("parent")) for each in get(server, "/models")["data"]] == [
        (name, None),
        ("first", name),
    ]

    assert post(server, "/load_lora_adapter", lora_name="second", lora_path=str(adapter_files.adapters[1]))[0] == 200
    assert post(server, "/load_lora_adapter", lora_name="third", lora_path=str(adapter_files.adapters[2]))[0] == 200
    found = ask_all(server, ["second", name, "first", "third"])
    assert found[:3] == wanted  # as merged, beside three others
    assert len(set(found)) == len(found)
    assert get(server, "/models/second")["root"] == str(adapter_files.adapters[1])

    with anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none") as client:
        hello: Any = [{"role": "user", "content": "Hello"}]
        texts = [client.messages.create(model=each, max_tokens=8, messages=hello) for each in ("second", name)]
    assert [text.model for text in texts] == ["second", name]
    assert texts[0].content != texts[1].content

    again = ask_all(server, ["second", name])  # whose prompts are in the prefix cache, by adapter
    assert again == found[:6]

    pids = [stage["pid"] for stage in get(server, "/cluster")["replicas"][0]["stages"]]
    assert stream(server, "second", PROMPTS[0], lambda: os.kill(pids[1], signal.SIGKILL)) == wanted[0]
    assert ask_all(server, ["second", name]) == found[:6]

    assert post(server, "/unload_lora_adapter", lora_name="second")[0] == 200
    assert post(server, "/completions", model="second", prompt="x", max_tokens=1)[0] == 404
    assert [each["id"] for each in get(server, "/models")["data"]] == [name, "first", "third"]
    assert ask_all(server, [name]) == found[3:6]


@pytest.mark.nightly
def test_streams_with_adapters_move_to_another_replica_with_them(
    serve: Callable[..., Server], adapter_files: AdapterFiles
) -> None:
    merged = serve(adapter_files.merged, "--backend", "torch", "--dtype", "float32")
    wanted = [stream(merged, "", prompt) for prompt in PROMPTS]
    added = [f"--adapter={name}={adapter_files.adapters[number]}" for number, name in enumerate(("first", "second"))]
    server = serve(adapter_files.model, "--backend", "torch", "--data-parallel", "2", "--dtype", "float32", *added)
    name = get(server, "/models")["data"][0]["id"]
    found = ask_all(server, ["second", name, "first"])
    assert found[:3] == wanted
    lost = get(server, "/cluster")["replicas"][0]["stages"][0]["pid"]
    begun = Barrier(6, lambda: os.kill(lost, signal.SIGKILL), WAIT_S)
    asked = [(model, prompt) for model in ("second", name) for prompt in PROMPTS]

    def wait() -> None:
        begun.wait()

    with ThreadPoolExecutor(len(asked)) as pool:
        moved = list(pool.map(lambda each: stream(server, each[0], each[1], wait), asked))
    assert moved == found[:6]
    assert ask_all(server, ["second", name, "first"]) == found  # from the prefix caches, by adapter


def read_gauge(server: Server) -> dict[str, str]:
    """Return the labels of the gauge, as gateways read it: the latest sample, with lists between commas."""
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics", timeout=WAIT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    [family] = [each for each in families if each.name == "vllm:lora_requests_info"]
    latest = max(family.samples, key=lambda sample: sample.value)
    assert latest.value > time.time() - WAIT_S
    return latest.labels


def test_clients_of_vllm_drive_it_unchanged(serve: Callable[..., Server], adapter_files: AdapterFiles) -> None:
    server = serve(adapter_files.model, "--backend", "torch", "--dtype", "float32")
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=WAIT_S)
    name = client.models.list().data[0].id
    # The sidecar of the Gateway API's inference extension names no base, and looks at the list before and after.
    body = {"lora_name": "sql", "lora_path": str(adapter_files.adapters[0]), "base_model_name": ""}
    assert client.post("/load_lora_adapter", body=body, cast_to=str).endswith("'sql' added successfully.")
    card = client.models.retrieve("sql").to_dict()
    assert (card["parent"], card["root"], card["object"]) == (name, body["lora_path"], "model")
    assert [each.id for each in client.models.list()] == [name, "sql"]
    # The client of KubeAI asks again, and goes by the type and these words.
    status, text = post(server, "/load_lora_adapter", **body)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (400, "InvalidUserInput")
    assert "has already been loaded" in error["message"]
    assert post(server, "/load_lora_adapter", **body, load_inplace=True, is_3d_lora_weight=False)[0] == 200

    assert read_gauge(server) == {"max_lora": "16", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    seen: list[dict[str, str]] = []
    stream(server, "sql", PROMPTS[0], lambda: seen.append(read_gauge(server)))
    assert seen == [{"max_lora": "16", "running_lora_adapters": "sql", "waiting_lora_adapters": ""}]

    gone = {"lora_name": "sql", "lora_int_id": 1}
    assert client.post("/unload_lora_adapter", body=gone, cast_to=str).startswith("Success: LoRA adapter 'sql' removed")
    status, text = post(server, "/unload_lora_adapter", **gone)
    error = json.loads(text)["error"]
    assert (status, error["type"]) == (404, "NotFoundError")
    assert error["message"] == "The lora adapter 'sql' cannot be found."
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("sql")


def test_name_that_is_loaded_anew_finds_no_pages_of_the_old_adapter_and_leaves_its_answers(
    serve: Callable[..., Server], adapter_files: AdapterFiles
) -> None:
    server = serve(adapter_files.model, "--backend", "torch", "--dtype", "float32")
    found = []
    for path in adapter_files.adapters[:2]:
        status, _ = post(server, "/load_lora_adapter", lora_name="mine", lora_path=str(path), load_inplace=True)
        assert status == 200
        found.append([stream(server, "mine", PROMPTS[0]) for _ in range(2)])
    assert found[0][0] == found[0][1] != found[1][0] == found[1][1]

    statuses: list[int] = []
    place = {"lora_path": str(adapter_files.adapters[0]), "load_inplace": True}
    for route, fields, text in (("/load_lora_adapter", place, found[1][0]), ("/unload_lora_adapter", {}, found[0][0])):
        change = partial(post, server, route, lora_name="mine", **fields)
        begun = stream(server, "mine", PROMPTS[0], lambda change=change: statuses.append(change()[0]))  # type: ignore[misc]
        assert begun == text, "an answer that has begun keeps its adapter"
    assert statuses == [200, 200]
    assert post(server, "/completions", model="mine", prompt="x", max_tokens=1)[0] == 404


def test_adapters_that_cannot_be_used_are_refused_with_the_field(
    serve: Callable[..., Server], adapter_files: AdapterFiles, tmp_path: Path
) -> None:
    server = serve(adapter_files.model, *STAGES, "--set", "max_waiting=8")
    name = get(server, "/models")["data"][0]["id"]
    other = write_adapter(tmp_path / "other", make_matrices({"layers.4.mlp.up_proj": (96, 63)}))
    absent = write_adapter(tmp_path / "absent", make_matrices({"layers.4.mlp.experts.1.up_proj": (96, 64)}))
    beyond = write_adapter(tmp_path / "beyond", make_matrices({"layers.99.mlp.up_proj": (96, 64)}))
    high = write_adapter(tmp_path / "high", make_matrices({"layers.0.mlp.up_proj": (96, 64)}, rank=300), r=300)
    million = write_adapter(tmp_path / "million", make_matrices({"layers.0.mlp.up_proj": (96, 64)}), r=10**6)
    wrong = {key: np.full_like(each, np.nan) for key, each in make_matrices({"layers.0.mlp.up_proj": (96, 64)}).items()}
    endless = write_adapter(tmp_path / "endless", wrong)
    huge = write_adapter(tmp_path / "huge", {key: np.full_like(each, 1e30) for key, each in wrong.items()})
    pickled = write_adapter(tmp_path / "pickled", {})
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    linked = write_adapter(tmp_path / "linked", {})
    (linked / "adapter_model.safetensors").unlink()
    (linked / "adapter_model.safetensors").symlink_to(adapter_files.adapters[0] / "adapter_model.safetensors")
    bodies: list[tuple[dict[str, Any], str, str]] = [
        ({"lora_path": str(million)}, "lora_path", "the rank 1000000; it must be between"),
        ({"lora_path": str(endless)}, "lora_path", "numbers that are not finite"),
        ({"lora_path": str(huge)}, "lora_path", "are not finite"),
        ({"lora_path": str(pickled)}, "lora_path", "adapter_model.bin is a pickle"),
        ({"lora_path": str(linked)}, "lora_path", "is not a regular file in"),
        ({"lora_path": "someone/adapter"}, "lora_path", "not fetched from a hub"),
        ({"lora_path": str(other)}, "lora_path", "up_proj has 64 inputs and 96 outputs in this model"),
        ({"lora_path": str(absent)}, "lora_path", "experts.1.up_proj, which takes no adapters"),
        ({"lora_path": str(beyond)}, "lora_path", "changes layers.99.mlp.up_proj, and the model has the layers 0 to"),
        ({"lora_path": str(high)}, "lora_path", "the rank 300; at most 256"),
        ({"lora_path": str(tmp_path / "none")}, "lora_path", "there is no adapter_config.json"),
        ({"lora_path": str(adapter_files.adapters[0]), "lora_name": name}, "lora_name", "the name of a model"),
        ({"lora_path": str(adapter_files.adapters[0]), "lora_name": "a b"}, "lora_name", "no name for an adapter"),
        ({"lora_path": str(adapter_files.adapters[0]), "base_model_name": "x"}, "base_model_name", "does not exist"),
        ({"lora_path": str(adapter_files.adapters[0]), "pin": True}, "pin", "pin"),
        ({}, "lora_path", "lora_path"),
    ]
    for body, field, message in bodies:
        status, text = post(server, "/load_lora_adapter", **{"lora_name": "mine", **body})
        error = json.loads(text)["error"]
        assert (status, error["param"]) == (400, field), error
        assert message in error["message"]
    assert [each["id"] for each in get(server, "/models")["data"]] == [name]
    assert post(server, "/unload_lora_adapter", lora_name="mine")[0] == 404
    assert post(server, "/completions", model=name, prompt="x", max_tokens=1)[0] == 200


def test_least_recently_used_adapter_makes_room(serve: Callable[..., Server], adapter_files: AdapterFiles) -> None:
    server = serve(adapter_files.model, "--backend", "torch", "--dtype", "float32", PARALLAX_ADAPTERS__MAX_ADAPTERS="2")

    def load(name: str, number: int, **fields: Any) -> int:
        return post(
            server, "/load_lora_adapter", lora_name=name, lora_path=str(adapter_files.adapters[number]), **fields
        )[0]

    def names() -> list[str]:
        return [each["id"] for each in get(server, "/models")["data"]][1:]

    assert load("a", 0) == load("b", 1) == 200
    stream(server, "a", PROMPTS[0])
    bad = {"lora_name": "c", "lora_path": "/nowhere"}
    assert post(server, "/load_lora_adapter", **bad)[0] == 400
    assert names() == ["a", "b"], "nothing makes room for what cannot be loaded"
    assert load("c", 2) == 200
    assert names() == ["a", "c"]
    assert load("b", 1, pinned=True) == 200
    assert names() == ["c", "b"]
    assert load("c", 2, pinned=True, load_inplace=True) == 200
    assert load("d", 0) == 503
    assert names() == ["c", "b"]


def test_adapters_come_and_go_under_load_without_harm(
    serve: Callable[..., Server], adapter_files: AdapterFiles
) -> None:
    server = serve(adapter_files.model, *STAGES)
    name, over = get(server, "/models")["data"][0]["id"], time.monotonic() + 8
    post(server, "/load_lora_adapter", lora_name="steady", lora_path=str(adapter_files.adapters[1]))
    wanted = {model: stream(server, model, PROMPTS[1]) for model in (name, "steady")}

    def work(model: str) -> int:
        count = 0
        while time.monotonic() < over:
            assert stream(server, model, PROMPTS[1]) == wanted[model]
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, model) for model in (name, "steady", "steady")]
        loads = 0
        while time.monotonic() < over:
            assert (
                post(
                    server,
                    "/load_lora_adapter",
                    lora_name="brief",
                    lora_path=str(adapter_files.adapters[loads % 2 * 2]),
                )[0]
                == 200
            )
            assert post(server, "/unload_lora_adapter", lora_name="brief")[0] == 200
            loads += 1
        assert all(each.result() for each in working)
    assert loads > 5
