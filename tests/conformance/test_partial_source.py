"""The kit for partial sources passes on the hub and on a source made up here, and sees each fault planted into it."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path

import pytest
from huggingface_hub import close_session

from parallax_core.api import ModelFolder, ModelSource, ParallaxError, Progress, SourceContext, StoredModel, UnknownName
from parallax_core.checkpoint.partial import FetchedRange, name_journal, read_present
from parallax_core.checkpoint.reader import find_locations
from parallax_core.testing.partial_source import PartialSourceConformance
from parallax_source_hub.source import HubSource
from tests.conformance.harness import list_tests, run_test
from tests.support.fakehub import FakeHub

WEIGHTS = "model.safetensors"
SIZE = 100_000
"""Bytes of a tensor."""


@cache
def make_files(seed: int) -> dict[str, bytes]:
    """Return a model of four tensors."""
    names = [f"layers.{index}" for index in range(4)]
    places = {name: [number * SIZE, (number + 1) * SIZE] for number, name in enumerate(names)}
    header = {name: {"dtype": "U8", "shape": [SIZE], "data_offsets": place} for name, place in places.items()}
    head = json.dumps(header).encode()
    data = b"".join(bytes(seed + number + i % 251 & 255 for i in range(SIZE)) for number in range(4))
    weights = len(head).to_bytes(8, "little") + head + data
    return {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", WEIGHTS: weights}


class TestHub(PartialSourceConformance):
    known = ("tiny/second", "tiny/first@main")
    unknown = "tiny/other"
    impossible = "../up"

    @pytest.fixture(autouse=True)
    def _serve(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with FakeHub() as self.hub:
            for seed, name in enumerate(("tiny/second", "tiny/first")):
                self.hub.add(name, make_files(seed))
            monkeypatch.setenv("HF_ENDPOINT", self.hub.endpoint)
            yield
            close_session()

    def make_source(self, folder: Path) -> ModelSource:
        return HubSource(SourceContext(folder=folder), pauses_s=())

    @contextmanager
    def go_offline(self) -> Iterator[None]:
        before = len(self.hub.requests)
        yield
        assert len(self.hub.requests) == before, "there were requests to the hub"


class Shop:
    """A partial source of two models made up on the spot; healthy, and a base to plant faults in."""

    online = True
    lock: AbstractContextManager[object] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locate(self, name: str) -> Path:
        if "/" in name:
            raise ParallaxError(f"{name!r} cannot be a model", "leave out the slash")
        return self.folder / name

    def find(self, name: str) -> ModelFolder | None:
        return ModelFolder(path=self.locate(name), ref="shop") if self.is_complete(self.locate(name)) else None

    def is_complete(self, path: Path) -> bool:
        sizes = {name: len(content) for name, content in make_files(0).items()}
        is_here = all((path / name).is_file() and (path / name).stat().st_size == sizes[name] for name in sizes)
        return is_here and not name_journal(path / WEIGHTS).exists()

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        return self.find(name) or self.fetch_tensors(name, lambda _: True, progress)

    def fetch_without_weights(self, name: str, progress: Progress) -> ModelFolder:
        path = self.locate(name)
        if name not in {"apple", "pear"}:
            raise UnknownName(f"there is no {name}", "take an apple or a pear")
        for number, (file, content) in enumerate(self.list_small(name).items()):
            if not (path / file).exists():
                self.use_network()
                path.mkdir(parents=True, exist_ok=True)
                progress("files", number, 2, "items")
                (path / file).write_bytes(content)
        progress("files", 2, 2, "items")
        return ModelFolder(path=path, ref="shop")

    def list_small(self, name: str) -> dict[str, bytes]:
        return {file: content for file, content in make_files(len(name)).items() if file != WEIGHTS}

    def fetch_tensors(self, name: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        self.locate(name)
        with self.lock:
            self.fetch_without_weights(name, progress)
            path = self.choose_folder(name)
            if not self.is_complete(path):
                self.fill(path / WEIGHTS, make_files(len(name))[WEIGHTS], is_wanted, progress)
        return ModelFolder(path=path, ref="shop")

    def choose_folder(self, name: str) -> Path:
        return self.folder / name

    def fill(self, path: Path, content: bytes, is_wanted: Callable[[str], bool], progress: Progress) -> None:
        if not path.exists() or path.stat().st_size != len(content):
            self.begin(path, content)
        places = find_locations(path)
        for number, place in enumerate(places):
            present = read_present(path)
            if is_wanted(place.name) and present is not None and not present.covers(place.start, place.stop):
                self.use_network()
                progress("tensors", number, len(places), "items")
                self.save(path, content, (place.start, place.stop), progress)
        progress("tensors", len(places), len(places), "items")
        present = read_present(path)
        if present is not None and present.covers(0, len(content)):
            name_journal(path).unlink()

    def begin(self, path: Path, content: bytes) -> None:
        self.use_network()
        start = 8 + int.from_bytes(content[:8], "little")
        self.note(path, content, (0, start))
        with path.open("wb") as file:
            file.write(content[:start])
            file.truncate(len(content))

    def save(self, path: Path, content: bytes, place: tuple[int, int], progress: Progress) -> None:
        middle = (place[0] + place[1]) // 2
        for start, stop in ((place[0], middle), (middle, place[1])):
            self.write(path, content, (start, stop))
            progress(f"tensor at {place[0]}", stop - place[0], place[1] - place[0])
        self.note(path, content, place)

    def write(self, path: Path, content: bytes, place: tuple[int, int]) -> None:
        with path.open("r+b") as file:
            file.seek(place[0])
            file.write(content[slice(*place)])

    def note(self, path: Path, content: bytes, place: tuple[int, int]) -> None:
        with name_journal(path).open("a", encoding="ascii") as journal:
            journal.write(f"{FetchedRange(*place, hashlib.sha256(content[slice(*place)]).hexdigest())}\n")

    def use_network(self) -> None:
        if not Shop.online:
            raise OSError("the network was used")

    def find_partial(self, name: str) -> StoredModel | None:
        path = self.locate(name)
        return self.describe(path) if path.is_dir() and not self.is_complete(path) else None

    def describe(self, path: Path) -> StoredModel:
        present = read_present(path / WEIGHTS)
        here = present.total if present else 0
        return StoredModel(
            name=path.name, path=path, size_bytes=here, total_bytes=sum(map(len, make_files(0).values()))
        )

    def list_folders(self) -> list[Path]:
        return sorted(self.folder.iterdir()) if self.folder.is_dir() else []

    def stored_partial(self) -> Sequence[StoredModel]:
        return [self.describe(path) for path in self.list_folders() if not self.is_complete(path)]

    def stored(self) -> Sequence[StoredModel]:
        paths = [path for path in self.list_folders() if self.is_complete(path)]
        return [StoredModel(name=path.name, path=path, size_bytes=self.measure(path)) for path in paths]

    def measure(self, path: Path) -> int:
        return sum(file.stat().st_size for file in path.iterdir())

    def remove(self, name: str) -> int:
        path = self.locate(name)
        if not path.is_dir():
            raise UnknownName(f"{name} is not stored here")
        freed = self.measure(path)
        self.delete(path)
        return freed

    def delete(self, path: Path) -> None:
        shutil.rmtree(path)


class ShopKit(PartialSourceConformance):
    known = ("pear", "apple")
    unknown = "plum"
    impossible = "a/b"
    source: Callable[[Path], ModelSource] = Shop

    def make_source(self, folder: Path) -> ModelSource:
        return type(self).source(folder)

    def go_offline(self) -> AbstractContextManager[object]:
        return self.cut_off()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        Shop.online = False
        try:
            yield
        finally:
            Shop.online = True


class TestShop(ShopKit):
    """The healthy one passes."""


class ComparingKit(ShopKit):
    """Compares with the model of the healthy one, where the faulty one has no model that is right."""

    def _fetch_whole(self, tmp_path: Path) -> dict[str, bytes]:
        return TestShop()._fetch_whole(tmp_path)

    def _halves(self, tmp_path: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
        return TestShop()._halves(tmp_path)


class Bare(Shop):
    """Forgets the tokenizer."""

    def list_small(self, name: str) -> dict[str, bytes]:
        return {"config.json": super().list_small(name)["config.json"]}


class Garbled(Shop):
    """Writes zeros where a tensor should be, and says that it is there."""

    def write(self, path: Path, content: bytes, place: tuple[int, int]) -> None:
        super().write(path, bytes(len(content)), place)


class Stingy(Shop):
    """Leaves out a tensor that is wanted."""

    def fill(self, path: Path, content: bytes, is_wanted: Callable[[str], bool], progress: Progress) -> None:
        super().fill(path, content, lambda name: name != "layers.1" and is_wanted(name), progress)


class Unmarked(Shop):
    """Has holes that nothing tells of."""

    def fill(self, path: Path, content: bytes, is_wanted: Callable[[str], bool], progress: Progress) -> None:
        super().fill(path, content, is_wanted, progress)
        name_journal(path).unlink(missing_ok=True)


class Hasty(Shop):
    """Notes what it is about to write."""

    def save(self, path: Path, content: bytes, place: tuple[int, int], progress: Progress) -> None:
        self.note(path, content, place)
        super().save(path, content, place, progress)


class Boastful(Shop):
    """Takes a part for the model."""

    def is_complete(self, path: Path) -> bool:
        return (path / WEIGHTS).exists()

    def fetch_tensors(self, name: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        self.fetch_without_weights(name, progress)
        self.fill(self.locate(name) / WEIGHTS, make_files(len(name))[WEIGHTS], is_wanted, progress)
        return ModelFolder(path=self.locate(name), ref="shop")


class Silent(Shop):
    """Does not tell of parts."""

    def stored_partial(self) -> Sequence[StoredModel]:
        return []


class Moving(Shop):
    """Has a folder for each part."""

    def choose_folder(self, name: str) -> Path:
        path = self.folder / f"{name} {len(self.list_folders())}"
        shutil.copytree(self.folder / name, path)
        return path


class Restless(Shop):
    """Moves what is complete."""

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        model = super().fetch(name, progress)
        return ModelFolder(path=model.path.rename(self.folder / f"{name} whole"), ref="shop")


class Chatty(Shop):
    """Asks the network whether what is here is still current."""

    def fetch_tensors(self, name: str, is_wanted: Callable[[str], bool], progress: Progress) -> ModelFolder:
        self.use_network()
        return super().fetch_tensors(name, is_wanted, progress)


class Clashing(Shop):
    """Uses no lock; two that begin together begin the file twice."""

    lock = nullcontext()
    meeting = threading.Barrier(2)

    def begin(self, path: Path, content: bytes) -> None:
        try:
            self.meeting.wait(1)
            path.with_suffix(".begun").touch(exist_ok=False)
        except threading.BrokenBarrierError:  # there is only one
            self.meeting.reset()
        super().begin(path, content)


class Loose(Shop):
    """Leaves the weights when a model is removed."""

    def delete(self, path: Path) -> None:
        (path / "config.json").unlink(missing_ok=True)


class Eager(Shop):
    """Makes a part where it is only asked for one."""

    def find_partial(self, name: str) -> StoredModel | None:
        self.locate(name).mkdir(parents=True, exist_ok=True)
        return super().find_partial(name)


class Open(Shop):
    """Finds nothing wrong with any name of a part."""

    def find_partial(self, name: str) -> StoredModel | None:
        return super().find_partial(name.replace("/", ""))


FAULTS: list[tuple[type[Shop], str, str]] = [
    (Bare, "test_everything_but_the_weights_comes_alone", "only ['config.json'] are right"),
    (Garbled, "test_wanted_tensors_are_those_of_the_model", "differ from the model"),
    (Stingy, "test_wanted_tensors_are_those_of_the_model", "the wanted tensors ['layers.1'] are missing"),
    (Unmarked, "test_wanted_tensors_are_those_of_the_model", "differ from the model"),
    (Hasty, "test_interrupted_part_has_no_unknown_hole", "differ from the model"),
    (Boastful, "test_part_is_listed_as_such_and_is_no_model", "a model with holes is found"),
    (Silent, "test_part_is_listed_as_such_and_is_no_model", "parts are listed as []"),
    (Moving, "test_more_is_added_to_the_same_folder", "the first part is in"),
    (Restless, "test_fetch_completes_a_part", "and the model is in"),
    (Chatty, "test_part_that_is_here_needs_no_network", "used the network"),
    (Clashing, "test_two_parts_at_once_go_into_one_folder", "of two concurrent fetches"),
    (Loose, "test_part_can_be_removed", "of a removed part are left"),
    (Eager, "test_nothing_is_here_before_it_is_fetched", "before any fetch"),
    (Open, "test_nothing_is_here_before_it_is_fetched", "did not raise ParallaxError"),
]


@pytest.mark.parametrize(("source", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(source: type[Shop], name: str, finding: str) -> None:
    kit = ComparingKit if source in {Bare, Garbled, Stingy, Unmarked} else ShopKit
    assert finding in run_test(type("Kit", (kit,), {"source": source}), name)


def test_every_test_of_the_kit_catches_something() -> None:
    own = {name for name in list_tests(PartialSourceConformance) if name in vars(PartialSourceConformance)}
    assert own == {name for _, name, _ in FAULTS}
