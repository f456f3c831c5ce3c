from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.builtin.hub import HubName, HubSource
from parallax_core.contracts.progress import Unit, silent
from parallax_core.contracts.source import SourceContext
from tests.fakehub import FakeHub, Fault

NAME = "tiny/model"
WEIGHTS = random.Random(1).randbytes(300_000)
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
}
UNWANTED = {
    ".gitattributes": b"x",
    "README.md": b"x",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickled",
    "model.pt": b"pickled",
    "model-q4.gguf": b"GGUF",
    "consolidated.safetensors": b"again",
    "original/consolidated.00.pth": b"again",
    "original/model.safetensors": b"again",
    "onnx/config.json": b"{}",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
        close_session()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "hf"


@pytest.fixture
def source(folder: Path) -> HubSource:
    return HubSource(SourceContext(folder=folder), pauses_s=(0, 0))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".complete.json"}


def child(hub: FakeHub, folder: Path, first: str = "", **env: str) -> subprocess.Popen[str]:
    program = (
        f"import pathlib, sys\n{first}\n"
        "from parallax_core.builtin.hub import HubSource\n"
        "from parallax_core.contracts.source import SourceContext\n"
        "def report(task, done, total, unit='bytes'):\n"
        "    print(done, total, flush=True)\n"
        "source = HubSource(SourceContext(folder=pathlib.Path(sys.argv[1])), pauses_s=(0, 0))\n"
        "print(source.fetch(sys.argv[2], report).path)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, str(folder), NAME],
        env={**os.environ, "HF_ENDPOINT": hub.endpoint, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_fetch_returns_a_folder_with_the_wanted_files_only(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL | UNWANTED)
    model = source.fetch(NAME, silent)
    assert model.ref == f"hf:{NAME}"
    assert contents(model.path) == MODEL
    assert sorted(hub.fetched()) == sorted(MODEL)


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
        assert (task, unit) == (f"download {NAME}", "bytes")
        seen.append((done, total))

    hub.add(NAME, MODEL)
    source.fetch(NAME, report)
    total = sum(len(content) for content in MODEL.values())
    assert seen == sorted(seen)
    assert {entry[1] for entry in seen} == {total}
    assert seen[-1] == (total, total)
    assert len({done for done, _ in seen}) > len(MODEL)


def test_a_cut_transfer_goes_on_where_it_stopped(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("model.safetensors", times=1))  # the redirect, which is not cut
    hub.faults.append(Fault("model.safetensors", cut_after=100_000))
    assert contents(source.fetch(NAME, silent).path) == MODEL
    first, second = hub.stored_bytes()
    assert "range" not in first.headers
    assert second.headers["range"] == "bytes=100000-"


def test_a_server_without_ranges_starts_the_file_over(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=100_000)]
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", ignore_range=True)]
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_transfers_are_tried_again_until_the_pauses_are_used_up(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("/tokenizer.json", status=503, times=2))
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched().count("tokenizer.json") == 3
    source.remove(NAME)
    hub.faults.append(Fault("/tokenizer.json", status=500, times=9))
    with pytest.raises(ParallaxError, match=r"answers HTTP 500 for tiny/model"):
        source.fetch(NAME, silent)
    assert hub.fetched().count("tokenizer.json") == 6


def test_transfers_that_get_on_are_never_given_up(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    for _ in range(5):
        hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert [asked.headers.get("range", "bytes=0-") for asked in hub.stored_bytes()] == [
        f"bytes={start}-" for start in range(0, 300_000, 50_000)
    ]


def test_a_second_fetch_keeps_what_the_first_brought(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    hub.faults.append(Fault("model.safetensors", status=404))
    with pytest.raises(ParallaxError, match="404"):
        source.fetch(NAME, silent)
    assert source.stored() == []
    hub.asked.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]
    assert hub.stored_bytes()[0].headers["range"] == "bytes=50000-"


def test_what_a_moved_branch_left_half_done_is_not_mixed_in(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, MODEL)
    hub.faults += [Fault("model.safetensors"), Fault("model.safetensors", cut_after=50_000)]
    hub.faults.append(Fault("model.safetensors", status=404))
    with pytest.raises(ParallaxError):
        source.fetch(NAME, silent)
    moved = MODEL | {"config.json": b'{"new": 1}', "model.safetensors": WEIGHTS[::-1]}
    hub.add(NAME, moved)
    assert contents(source.fetch(NAME, silent).path) == moved
    assert not list((folder / ".partial").iterdir())


def test_a_corrupt_file_is_refused_and_fetched_afresh(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    for name, faults in {"/tokenizer.json": 0, "model.safetensors": 1}.items():
        hub.faults += [Fault(name)] * faults + [Fault(name, corrupt=True)]
        with pytest.raises(ParallaxError, match=r"arrived damaged: its checksum differs") as caught:
            source.fetch(NAME, silent)
        assert "again" in caught.value.hint
        assert source.stored() == []
    assert contents(source.fetch(NAME, silent).path) == MODEL


@pytest.mark.parametrize(("claimed", "message"), [(200_000, "more than the 200000"), (400_000, "300000 of 400000")])
def test_a_file_of_another_size_is_refused(hub: FakeHub, source: HubSource, claimed: int, message: str) -> None:
    hub.add(NAME, MODEL)
    hub.repos[NAME].sizes["model.safetensors"] = claimed

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        assert total is not None, (task, unit)
        assert done <= total

    with pytest.raises(ParallaxError, match=message):
        source.fetch(NAME, report)
    assert source.stored() == []


def test_weights_that_are_pickled_are_refused_before_any_download(hub: FakeHub, source: HubSource) -> None:
    files = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    hub.add(NAME, files | UNWANTED)
    with pytest.raises(ParallaxError, match=r"no \*\.safetensors") as caught:
        source.fetch(NAME, silent)
    assert "GGUF" in caught.value.hint
    hub.add(NAME, files | {"pytorch_model.bin": b"pickled"})
    with pytest.raises(ParallaxError, match=r"no \*\.safetensors") as caught:
        source.fetch(NAME, silent)
    assert "pickled" in caught.value.hint
    assert hub.fetched() == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_repository_that_is_no_model_is_refused(hub: FakeHub, source: HubSource, name: str) -> None:
    hub.add(NAME, {key: content for key, content in MODEL.items() if key != name})
    with pytest.raises(ParallaxError, match=f"no {name}"):
        source.fetch(NAME, silent)
    assert hub.fetched() == []


def test_an_unknown_repository_and_revision_are_named(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    with pytest.raises(UnknownName, match="has no model no/such"):
        source.fetch("no/such", silent)
    with pytest.raises(UnknownName, match="no revision 'v9'"):
        source.fetch(f"{NAME}@v9", silent)


@pytest.mark.parametrize("name", ["", "/abs/path", "./here", "~/x", "a/b/c", "a/..", "a--b/c", "a/b@", "a b/c", "ä/b"])
def test_names_that_cannot_be_repositories_are_refused(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        HubName.parse(name)
    assert "file:PATH" in caught.value.hint


def test_a_gated_model_asks_for_the_licence_and_the_token(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, MODEL, token="hf_right")
    with pytest.raises(ParallaxError, match="gated") as caught:
        source.fetch(NAME, silent)
    assert "HF_TOKEN" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, MODEL)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    source.fetch(NAME, silent)
    for asked in hub.asked:
        assert ("authorization" in asked.headers) != asked.path.startswith("/storage/")


@pytest.mark.parametrize(("status", "word"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (429, "a while"), (500, "a while")])
def test_a_listing_that_is_refused_says_what_to_do(hub: FakeHub, source: HubSource, status: int, word: str) -> None:
    hub.faults.append(Fault("/main", status=status))
    with pytest.raises(ParallaxError, match=str(status)) as caught:
        source.fetch(NAME, silent)
    assert word in caught.value.hint


def test_a_hub_that_asks_to_wait_is_obeyed(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.faults.append(Fault("/config.json", status=429, headers={"Retry-After": "1"}))
    before = time.monotonic()
    source.fetch(NAME, silent)
    assert time.monotonic() - before >= 1


def test_an_unreachable_hub_is_named(hub: FakeHub, source: HubSource) -> None:
    endpoint = hub.endpoint
    hub.stop()
    with pytest.raises(ParallaxError, match=f"cannot reach {endpoint}") as caught:
        source.fetch(NAME, silent)
    assert "HF_ENDPOINT" in caught.value.hint


@pytest.mark.parametrize("endpoint", ["hub", "ftp://hub", "http://"])
def test_an_endpoint_that_is_no_address_is_named(
    source: HubSource, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ParallaxError, match="HF_ENDPOINT is"):
        source.fetch(NAME, silent)


def test_a_server_that_is_no_hub_is_named(hub: FakeHub, source: HubSource) -> None:
    hub.faults.append(Fault("/main", status=200))
    with pytest.raises(ParallaxError, match="does not answer like a hub"):
        source.fetch(NAME, silent)


def test_a_download_larger_than_the_disk_is_refused_first(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    hub.repos[NAME].sizes["model.safetensors"] = 2**60
    with pytest.raises(ParallaxError, match="GB free"):
        source.fetch(NAME, silent)
    assert "model.safetensors" not in hub.fetched()


def test_a_folder_that_cannot_be_written_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, MODEL)
    (tmp_path / "file").write_text("in the way")
    source = HubSource(SourceContext(folder=tmp_path / "file" / "hf"))
    with pytest.raises(ParallaxError, match="cannot write to") as caught:
        source.fetch(NAME, silent)
    assert "PARALLAX_HOME" in caught.value.hint


def test_a_disk_that_fills_up_is_named_and_what_is_here_kept(hub: FakeHub, folder: Path, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    process = child(hub, folder, limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot write to {folder}: File too large" in err.splitlines()[-1]
    assert source.stored() == []
    hub.asked.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]


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
    assert [asked.path for asked in hub.asked if not asked.path.startswith(prefixes)] == []
    assert not any("somebody" in asked.headers.get("user-agent", "") for asked in hub.asked)


def test_offline_is_obeyed(hub: FakeHub, folder: Path, source: HubSource) -> None:
    hub.add(NAME, MODEL)
    process = child(hub, folder, HF_HUB_OFFLINE="1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "HF_HUB_OFFLINE forbids" in err.splitlines()[-1]
    assert hub.asked == []
    source.fetch(NAME, silent)
    process = child(hub, folder, HF_HUB_OFFLINE="1")
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
    hub.asked.clear()
    assert contents(source.fetch(NAME, silent).path) == MODEL
    assert hub.fetched() == ["model.safetensors"]
    assert int(hub.stored_bytes()[0].headers["range"].removeprefix("bytes=").removesuffix("-")) >= 16_384


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
