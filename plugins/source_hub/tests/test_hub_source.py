from __future__ import annotations

import hashlib
import json
import signal
import time
from pathlib import Path

import pytest

from parallax_core.api import ParallaxError, SourceContext, Unit, UnknownName, silent
from parallax_source_hub.source import HubSource
from tests.support.fakehub import FakeHub, Fault
from tests.support.tinyhub import MODEL, NAME, UNWANTED, WEIGHTS, child, contents


def test_fetch_returns_a_folder_with_the_wanted_files_only(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL | UNWANTED)
    model = source.fetch(NAME, silent)
    assert model.ref == f"hf:{NAME}"
    assert contents(model.path) == MODEL
    assert sorted(hub.fetched()) == sorted(MODEL)


def test_fetch_takes_the_pooling_of_a_model_for_embeddings(hub: FakeHub, source: HubSource) -> None:
    hub.add(
        NAME, MODEL | UNWANTED | {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "2_Pooling/config.json": b"2"}
    )
    path = source.fetch(NAME, silent).path
    assert (path / "1_Pooling" / "config.json").read_bytes() == b"{}"
    assert (path / "modules.json").read_bytes() == b"[]"
    assert not (path / "2_Pooling").exists()
    assert [model.path for model in source.stored()] == [path]
    source.remove(NAME)
    assert not path.exists()


def test_fetch_takes_further_chat_templates_from_their_folder_only(hub: FakeHub, source: HubSource) -> None:
    wanted = {"chat_template.jinja": b"a", "additional_chat_templates/tool_use.jinja": b"b"}
    hub.add(NAME, MODEL | wanted | {"additional_chat_templates/x.py": b"", "other/x.jinja": b"", ".x.jinja": b""})
    path = source.fetch(NAME, silent).path
    names = {each.relative_to(path).as_posix() for each in path.rglob("*.*") if not each.name.endswith(".json")}
    assert names >= set(wanted)
    assert not [name for name in names if "x." in name]


def test_fetch_takes_the_shards_of_the_index(hub: FakeHub, source: HubSource) -> None:
    shards = {"model-1-of-2.safetensors": b"a" * 1000, "model-2-of-2.safetensors": b"b" * 1000}
    index = {"weight_map": {"x": "model-1-of-2.safetensors", "y": "model-2-of-2.safetensors"}}
    small = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    wanted = small | shards | {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.add(NAME, wanted | UNWANTED | {"model.fp16.safetensors": b"again"})
    assert contents(source.fetch(NAME, silent).path) == wanted


@pytest.mark.parametrize("shard", ["absent.safetensors", "../../outside.safetensors", "code.py"])
def test_fetch_refuses_an_index_that_names_other_files(hub: FakeHub, source: HubSource, shard: str) -> None:
    files = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    files["part.safetensors"] = b"x"
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"x": shard}}).encode()
    hub.add(NAME, files)
    with pytest.raises(ParallaxError):
        source.fetch(NAME, silent)
    assert source.stored() == []


def test_fetch_of_a_complete_model_asks_no_network(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, MODEL)
    first = source.fetch(NAME, silent)
    hub.stop()
    assert source.fetch(NAME, silent) == first
    assert HubSource(SourceContext(folder=folder)).fetch(f"{NAME}@main", silent) == first


def test_fetch_again_when_a_file_was_damaged(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    path = source.fetch(NAME, silent).path
    (path / "model.safetensors").write_bytes(b"short")
    assert source.stored() == []
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_fetch_keeps_revisions_apart(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    commit = hub.add(NAME, MODEL | {"config.json": b'{"old": true}'}, branch="refs/pr/1")
    new = source.fetch(NAME, silent).path
    assert (new / "config.json").read_bytes() == MODEL["config.json"]
    for revision in ("refs/pr/1", commit):
        old = source.fetch(f"{NAME}@{revision}", silent)
        assert (old.path / "config.json").read_bytes() == b'{"old": true}'
        assert old.ref == f"hf:{NAME}@{revision}"


def test_progress_counts_all_bytes_of_one_task(hub: FakeHub, source: HubSource) -> None:
    seen: list[tuple[int, int | None]] = []

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        assert unit == "bytes"
        if task == f"download {NAME}":
            seen.append((done, total))

    hub.add(NAME, MODEL)
    source.fetch(NAME, report)
    total = sum(len(content) for content in MODEL.values())
    assert seen == sorted(seen)
    assert {entry[1] for entry in seen} == {total}
    assert seen[-1] == (total, total)
    assert len({done for done, _ in seen}) > len(MODEL)


def test_stored_and_remove_know_what_is_complete(hub: FakeHub, source: HubSource, folder: Path) -> None:
    assert source.stored() == []
    hub.add(NAME, MODEL)
    hub.add("other/model", MODEL)
    source.fetch("other/model", silent)
    source.fetch(NAME, silent)
    size = sum(len(content) for content in MODEL.values())
    assert [(model.name, model.size_bytes) for model in source.stored()] == [("other/model", size), (NAME, size)]
    on_disk = size + len((folder / "tiny--model" / ".complete.json").read_bytes())
    assert source.remove(NAME) == on_disk
    assert [model.name for model in source.stored()] == ["other/model"]
    with pytest.raises(UnknownName, match="tiny/model is not stored") as caught:
        source.remove(NAME)
    assert "other/model" in caught.value.hint


def test_remove_frees_what_an_interrupted_download_left(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    hub.faults.append(Fault("model.safetensors", status=404))
    with pytest.raises(ParallaxError):
        source.fetch(NAME, silent)
    assert source.remove(NAME) > 50_000
    with pytest.raises(UnknownName):
        source.remove(NAME)


def test_remove_deletes_nothing_outside_its_folder(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, MODEL)
    moved = source.fetch(NAME, silent).path.rename(folder.parent / "elsewhere")
    (folder / "tiny--model").symlink_to(moved)
    assert [model.name for model in source.stored()] == [NAME]
    assert source.remove(NAME) == 0
    assert source.stored() == []
    assert contents(moved) == MODEL
    with pytest.raises(UnknownName):
        source.remove("../elsewhere")


def test_nothing_but_the_model_is_asked_for_and_nothing_printed(hub: FakeHub, folder: Path) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=100_000)]
    process = child(hub, folder, HF_HOME=str(folder / "home"), AI_AGENT="somebody")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == str(folder / "tiny--model")
    commit = hub.repos[NAME].branches["main"]
    prefixes = (f"/api/models/{NAME}/revision/main", f"/{NAME}/resolve/{commit}/", "/storage/")
    assert [asked.path for asked in hub.requests if not asked.path.startswith(prefixes)] == []
    assert not any("somebody" in asked.headers.get("user-agent", "") for asked in hub.requests)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "PARALLAX_OFFLINE"])
def test_offline_is_obeyed(hub: FakeHub, folder: Path, source: HubSource, variable: str) -> None:
    hub.add(NAME, MODEL)
    process = child(hub, folder, **{variable: "1"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "HF_HUB_OFFLINE or --offline forbids" in err.splitlines()[-1]
    assert hub.requests == []
    source.fetch(NAME, silent)
    process = child(hub, folder, **{variable: "1"})
    assert process.communicate(timeout=60)[1] == ""


def test_an_interrupt_ends_a_download_at_once_and_the_next_goes_on(
    hub: FakeHub, folder: Path, source: HubSource
) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", pause_s=0.5)]
    process = child(hub, folder)
    assert process.stdout is not None
    while int(process.stdout.readline().split()[0]) < 30_000:
        pass
    process.send_signal(signal.SIGINT)
    before = time.monotonic()
    process.communicate(timeout=10)
    assert time.monotonic() - before < 3
    assert process.returncode != 0
    assert source.stored() == []
    hub.requests.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]
    assert int(hub.storage_requests()[0].headers["range"].removeprefix("bytes=").partition("-")[0]) >= 16_384


def test_two_processes_at_once_download_once(hub: FakeHub, folder: Path) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", pause_s=0.05)]
    processes = [child(hub, folder) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [err for _, err in answers] == ["", ""]
    assert [out.splitlines()[-1] for out, _ in answers] == [str(folder / "tiny--model")] * 2
    assert sorted(hub.fetched()) == sorted(MODEL)
    assert hashlib.sha256((folder / "tiny--model" / "model.safetensors").read_bytes()).digest() == (
        hashlib.sha256(WEIGHTS).digest()
    )


def test_model_without_tokenizer_json_is_fetched_with_the_file_that_is_converted(
    hub: FakeHub, source: HubSource
) -> None:
    files = {name: content for name, content in MODEL.items() if name != "tokenizer.json"}
    hub.add(NAME, files | UNWANTED | {"tokenization_tiny.py": b"raise SystemExit", "tiny.tiktoken": b"IQ== 0\n"})
    assert contents(source.fetch(NAME, silent).path) == files | {"tiny.tiktoken": b"IQ== 0\n"}
