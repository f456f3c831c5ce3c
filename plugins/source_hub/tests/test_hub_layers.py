"""Fetching the layers of a stage, and no others."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallax_core.api import ParallaxError, PartialSource, SourceContext, Unit, silent
from parallax_core.api.source import find_locations, find_missing
from parallax_source_hub.model_download import HEADER_BYTES
from parallax_source_hub.source import HubSource
from tests.support.fakehub import FakeHub, Fault, RecordedRequest
from tests.support.tinyhub import (
    LAYERED,
    LAYERS,
    MODEL,
    NAME,
    UNWANTED,
    Stage,
    child,
    contents,
    list_sizes,
    make_stage,
    make_weights,
    read_stage,
    split_layered,
)

WEIGHTS = "model.safetensors"
SMALL_BYTES = sum(len(content) for name, content in LAYERED.items() if name != WEIGHTS)
WHOLE_BYTES = len(LAYERED[WEIGHTS])
STAGES = [Stage(0, 10), Stage(10, 20), Stage(20, 30)]


def test_source_of_the_hub_can_fetch_parts(source: HubSource) -> None:
    assert isinstance(source, PartialSource)


@pytest.mark.parametrize("stage", STAGES, ids=["first", "middle", "last"])
def test_stage_downloads_a_third_of_the_bytes_for_a_third_of_the_layers(
    hub: FakeHub, source: HubSource, stage: Stage
) -> None:
    hub.add(NAME, LAYERED)
    model = source.fetch_tensors(NAME, stage.wants, silent)
    assert read_stage(model.path, stage) == make_stage(stage)
    assert find_missing(model.path) >= list_sizes().keys() - stage.names - {"model.embed_tokens.weight"}
    assert stage.num_bytes <= hub.num_sent <= stage.num_bytes + HEADER_BYTES + SMALL_BYTES
    assert hub.num_sent < WHOLE_BYTES * 0.4
    assert source.find(NAME) is None
    assert source.stored() == []


def test_weights_of_a_revision_are_listed_however_much_of_it_is_here(hub: FakeHub, tmp_path: Path) -> None:
    hub.add(NAME, split_layered(3) | UNWANTED)
    places = [HubSource(SourceContext(folder=tmp_path / name)) for name in ("none", "part", "all")]
    found = [
        places[0].fetch_without_weights(NAME, silent),
        places[1].fetch_tensors(NAME, STAGES[1].wants, silent),
        places[2].fetch(NAME, silent),
    ]
    listed = found[0].listed_weights
    assert listed.keys() == {f"model-{number}-of-3.safetensors" for number in (1, 2, 3)}
    assert [model.listed_weights for model in found] == [listed] * 3
    again = places[2].find(NAME)
    assert again is not None
    assert again.listed_weights == listed


def test_other_revision_lists_other_weights_only_where_they_differ(hub: FakeHub, tmp_path: Path) -> None:
    files = split_layered(3)
    changed = files | {"README.md": b"new", "model-2-of-3.safetensors": files["model-2-of-3.safetensors"][:-1] + b"x"}
    listed = []
    for number, each in enumerate((files, changed)):
        hub.add(NAME, each)
        place = HubSource(SourceContext(folder=tmp_path / str(number)))
        listed.append(place.fetch_without_weights(NAME, silent).listed_weights)
    assert {name for name in listed[0] if listed[0][name] != listed[1][name]} == {"model-2-of-3.safetensors"}


def test_everything_but_the_weights_is_fetched_alone(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    model = source.fetch_without_weights(NAME, silent)
    assert model.ref == f"hf:{NAME}"
    assert contents(model.path) == {name: content for name, content in LAYERED.items() if name != WEIGHTS}
    assert hub.num_sent == SMALL_BYTES
    hub.stop()
    assert source.fetch_without_weights(NAME, silent) == model


def test_stages_add_to_one_folder_until_it_is_the_model(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, LAYERED)
    paths = set()
    for number, stage in enumerate(STAGES):
        paths.add(source.fetch_tensors(NAME, stage.wants, silent).path)
        assert (source.find(NAME) is None) == (number < 2)
    assert contents(paths.pop()) == LAYERED
    assert paths == set()
    assert hub.num_sent == SMALL_BYTES + WHOLE_BYTES
    assert [model.name for model in HubSource(SourceContext(folder=folder)).stored()] == [NAME]
    assert source.stored_partial() == []


def test_fetch_completes_a_part_without_fetching_it_twice(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    part = source.fetch_tensors(NAME, STAGES[1].wants, silent)
    assert source.fetch(NAME, silent) == part
    assert contents(part.path) == LAYERED
    assert hub.num_sent == SMALL_BYTES + WHOLE_BYTES


def test_part_that_is_here_needs_no_network(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, LAYERED)
    part = source.fetch_tensors(NAME, STAGES[1].wants, silent)
    hub.stop()
    again = HubSource(SourceContext(folder=folder), pauses_s=())
    assert again.fetch_tensors(NAME, Stage(12, 15).wants, silent) == part
    with pytest.raises(ParallaxError, match="cannot reach"):
        again.fetch_tensors(NAME, STAGES[2].wants, silent)


def test_complete_model_is_a_part_of_itself(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    whole = source.fetch(NAME, silent)
    hub.stop()
    assert source.fetch_tensors(NAME, STAGES[0].wants, silent) == whole
    assert source.fetch_without_weights(NAME, silent) == whole
    assert source.find_partial(NAME) is None


def test_parts_are_listed_with_what_is_here_and_removed(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, LAYERED)
    source.fetch_tensors(NAME, STAGES[1].wants, silent)
    [part] = source.stored_partial()
    assert part == source.find_partial(f"{NAME}@main")
    assert (part.name, part.path, part.size_bytes) == (NAME, folder / "tiny--model", hub.num_sent)
    assert part.total_bytes == SMALL_BYTES + WHOLE_BYTES
    freed = source.remove(NAME)
    assert hub.num_sent <= freed <= hub.num_sent + 3000
    assert source.find_partial(NAME) is None
    assert not part.path.exists()


@pytest.mark.parametrize("files", [2, 7])
def test_stage_needs_the_files_of_its_layers_only(hub: FakeHub, source: HubSource, files: int) -> None:
    wanted = split_layered(files)
    hub.add(NAME, wanted)
    stage = Stage(12, 15)
    model = source.fetch_tensors(NAME, stage.wants, silent)
    assert read_stage(model.path, stage) == make_stage(stage)
    assert find_missing(model.path) >= list_sizes().keys() - stage.names - {"model.embed_tokens.weight"}
    shards = [name for name in wanted if name.endswith(".safetensors")]
    fetched = set(hub.fetched())
    assert 0 < len([name for name in shards if name in fetched]) < len(shards)
    assert contents(source.fetch(NAME, silent).path) == wanted
    assert source.stored_partial() == []


def test_files_without_an_index_are_looked_through(hub: FakeHub, source: HubSource) -> None:
    wanted = {name: content for name, content in split_layered(3).items() if name != "model.safetensors.index.json"}
    hub.add(NAME, wanted)
    for _ in range(2):
        model = source.fetch_tensors(NAME, STAGES[1].wants, silent)
        assert read_stage(model.path, STAGES[1]) == make_stage(STAGES[1])
    assert hub.num_sent < WHOLE_BYTES * 0.5
    assert contents(source.fetch(NAME, silent).path) == wanted


def test_hub_without_ranges_gives_whole_files_of_the_layers_only(hub: FakeHub, source: HubSource) -> None:
    wanted = split_layered(6)
    hub.add(NAME, wanted)
    hub.faults.append(Fault(".safetensors", ignore_range=True, times=1000))
    stage = Stage(14, 16)
    model = source.fetch_tensors(NAME, stage.wants, silent)
    assert read_stage(model.path, stage) == make_stage(stage)
    shards = {name for name in wanted if name.endswith(".safetensors")}
    used = [len(wanted[name]) for name in shards & set(hub.fetched())]
    assert len(used) < len(shards)
    assert hub.num_sent < SMALL_BYTES + sum(used) + len(used) * (HEADER_BYTES + 2**20)


def test_header_that_is_longer_than_most_is_fetched_whole(hub: FakeHub, source: HubSource) -> None:
    sizes = {f"model.layers.{index}.{'x' * 60}": 100 for index in range(2000)}
    hub.add(NAME, MODEL | {WEIGHTS: make_weights(sizes)})
    model = source.fetch_tensors(NAME, lambda name: name.startswith("model.layers.7."), silent)
    assert min(place.start for place in find_locations(model.path / WEIGHTS)) > HEADER_BYTES
    assert len(find_missing(model.path)) > 1000


@pytest.mark.parametrize(
    "begin", [b"", b"\xff" * 8, (50).to_bytes(8, "little") + b"{" * 50, (10**7).to_bytes(8, "little")]
)
def test_file_that_is_none_is_refused_and_not_shown(hub: FakeHub, source: HubSource, begin: bytes) -> None:
    hub.add(NAME, MODEL | {WEIGHTS: begin + bytes(1000)})
    with pytest.raises(ParallaxError, match="is damaged") as caught:
        source.fetch_tensors(NAME, STAGES[0].wants, silent)
    assert caught.value.hint
    assert not (source.fetch_without_weights(NAME, silent).path / WEIGHTS).exists()


def test_cut_transfer_of_a_part_goes_on_where_it_stopped(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    hub.faults += [Fault(WEIGHTS), Fault(WEIGHTS), Fault(WEIGHTS)]  # the header, and a redirect
    hub.faults.append(Fault(WEIGHTS, cut_after=300_000))
    model = source.fetch_tensors(NAME, STAGES[1].wants, silent)
    assert read_stage(model.path, STAGES[1]) == make_stage(STAGES[1])
    assert hub.num_sent <= STAGES[1].num_bytes + HEADER_BYTES + SMALL_BYTES


def test_interrupted_part_goes_on_where_it_stopped(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, LAYERED)

    def interrupt(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        if "layers" in task and total and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.fetch_tensors(NAME, STAGES[1].wants, interrupt)
    model = HubSource(SourceContext(folder=folder)).fetch_tensors(NAME, STAGES[1].wants, silent)
    assert read_stage(model.path, STAGES[1]) == make_stage(STAGES[1])
    (before, _), (begin, _) = [find_range(asked) for asked in hub.storage_requests()[1:]]
    assert begin - before >= STAGES[1].num_bytes * 0.4


def find_range(asked: RecordedRequest) -> tuple[int, int]:
    """Return the first and the last byte that was asked for."""
    first, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
    return int(first), int(last)


FETCH_LAYERS = "fetch_tensors(sys.argv[2], lambda name: '.layers.1' in name, report)"


def test_killed_process_loses_little(hub: FakeHub, source: HubSource, folder: Path) -> None:
    hub.add(NAME, LAYERED)
    hub.faults += [Fault(WEIGHTS), Fault(WEIGHTS), Fault(WEIGHTS), Fault(WEIGHTS, pause_s=0.05)]
    first = "from parallax_source_hub import partial_file; partial_file.RANGE_BYTES = 100_000"
    process = child(hub, folder, first, FETCH_LAYERS)
    assert process.stdout is not None
    while int(process.stdout.readline().split()[0]) < 800_000:
        pass
    process.kill()
    process.communicate(timeout=10)
    stage = Stage(10, 20)
    model = source.fetch_tensors(NAME, stage.wants, silent)
    assert read_stage(model.path, stage) == make_stage(stage)
    (before, _), (begin, _) = [find_range(asked) for asked in hub.storage_requests()[1:]]
    assert begin - before >= 400_000


def test_two_processes_at_once_fetch_their_layers_into_one_folder(hub: FakeHub, folder: Path) -> None:
    hub.add(NAME, LAYERED)
    calls = [f"fetch_tensors(sys.argv[2], lambda name: '.layers.{digit}' in name, report)" for digit in (1, 2)]
    answers = [process.communicate(timeout=60) for process in [child(hub, folder, "", call) for call in calls]]
    assert [err for _, err in answers] == ["", ""]
    path = folder / "tiny--model"
    assert [out.splitlines()[-1] for out, _ in answers] == [str(path)] * 2
    for stage in (Stage(1, 2), Stage(10, 20), Stage(20, 30)):
        stage.names.discard("model.norm.weight")
        assert read_stage(path, stage) == make_stage(stage)
    assert "model.layers.5.mlp" in find_missing(path)


def test_process_that_waits_for_another_gives_signs_of_life(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    tasks: list[tuple[str, int]] = []
    waits = threading.Event()

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        tasks.append((task, done))
        if "wait" in task:
            waits.set()

    def hold(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        if "layers" in task:
            assert waits.wait(30)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(source.fetch_tensors, NAME, STAGES[0].wants, hold)
        while not other.done() and not hub.storage_requests():
            time.sleep(0.01)
        source.fetch_tensors(NAME, STAGES[1].wants, report)
        other.result(30)
    assert tasks[0] == (f"wait for another download of {NAME}", 0)
    assert (f"wait for another download of {NAME}", 1) in tasks


def test_wrong_bytes_show_when_the_model_is_complete(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    hub.faults += [Fault(WEIGHTS), Fault(WEIGHTS), Fault(WEIGHTS), Fault(WEIGHTS, corrupt=True)]
    source.fetch_tensors(NAME, STAGES[1].wants, silent)
    with pytest.raises(ParallaxError, match="arrived damaged: its checksum differs"):
        source.fetch(NAME, silent)
    assert contents(source.fetch(NAME, silent).path) == LAYERED


def test_bytes_that_change_on_the_disk_are_fetched_again_and_no_others(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    path = source.fetch_tensors(NAME, STAGES[1].wants, silent).path / WEIGHTS
    place = next(place for place in find_locations(path) if place.name == "model.layers.15.mlp")
    with path.open("r+b") as file:
        file.seek(place.start)
        byte = file.read(1)[0]
        file.seek(place.start)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(ParallaxError, match=r"1 of \d+ parts of .* have changed since they were fetched") as caught:
        source.fetch(NAME, silent)
    assert "again" in caught.value.hint
    before = hub.num_sent
    assert contents(source.fetch(NAME, silent).path) == LAYERED
    assert hub.num_sent - before < WHOLE_BYTES / 2


def test_disk_needs_room_for_what_is_missing_only(
    hub: FakeHub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, LAYERED)
    free = STAGES[1].num_bytes + HEADER_BYTES
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(ParallaxError, match="GB free"):
        source.fetch(NAME, silent)
    source.fetch_tensors(NAME, STAGES[1].wants, silent)
    free = 0
    source.fetch_tensors(NAME, Stage(11, 19).wants, silent)
    with pytest.raises(ParallaxError, match="GB free"):
        source.fetch_tensors(NAME, Stage(9, 20).wants, silent)


def test_holes_take_no_room(hub: FakeHub, source: HubSource) -> None:
    hub.add(NAME, LAYERED)
    path = source.fetch_tensors(NAME, STAGES[1].wants, silent).path / WEIGHTS
    assert path.stat().st_size == WHOLE_BYTES
    if hasattr(os.stat_result, "st_blocks"):
        assert path.stat().st_blocks * 512 < WHOLE_BYTES * 0.5


def test_commit_that_the_hub_no_longer_has_is_named(hub: FakeHub, source: HubSource) -> None:
    commit = hub.add(NAME, LAYERED)
    source.fetch_tensors(NAME, STAGES[1].wants, silent)
    hub.add(NAME, MODEL)
    del hub.repos[NAME].commits[commit]
    with pytest.raises(ParallaxError, match=commit) as caught:
        source.fetch(NAME, silent)
    assert f"parallax models rm hf:{NAME}" in caught.value.hint
    source.remove(NAME)
    assert contents(source.fetch(NAME, silent).path) == MODEL


def test_progress_of_a_part_counts_what_is_here_already(hub: FakeHub, source: HubSource) -> None:
    seen: list[tuple[int, int | None]] = []

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        if task == f"download layers of {NAME}":
            seen.append((done, total))

    hub.add(NAME, LAYERED)
    source.fetch_tensors(NAME, STAGES[1].wants, silent)
    source.fetch_tensors(NAME, Stage(10, 25).wants, report)
    assert seen == sorted(seen)
    assert seen[0][0] >= STAGES[1].num_bytes
    assert seen[-1][0] == seen[-1][1]
    assert LAYERS == 30


def test_size_of_a_part_counts_the_files_of_the_index_only(hub: FakeHub, source: HubSource) -> None:
    files = split_layered(3)
    hub.add(NAME, files | {"model.fp16.safetensors": bytes(5_000_000)})
    source.fetch_tensors(NAME, STAGES[0].wants, silent)
    [part] = source.stored_partial()
    assert part.total_bytes == sum(map(len, files.values()))


def test_process_killed_while_it_completes_a_model_leaves_it_complete(
    hub: FakeHub, source: HubSource, folder: Path
) -> None:
    """Both records are there for a moment."""
    hub.add(NAME, LAYERED)
    source.fetch_tensors(NAME, STAGES[0].wants, silent)
    record = (folder / "tiny--model" / ".partial.json").read_bytes()
    source.fetch(NAME, silent)
    (folder / "tiny--model" / ".partial.json").write_bytes(record)
    assert [model.name for model in source.stored()] == [NAME]
    assert source.stored_partial() == []
    assert source.find_partial(NAME) is None
