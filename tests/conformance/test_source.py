from __future__ import annotations

import json
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from huggingface_hub import close_session

from parallax_core.api import (
    ModelFolder,
    ModelSource,
    ParallaxError,
    Progress,
    SourceContext,
    StoredModel,
    UnknownName,
)
from parallax_core.builtin.local import LocalSource
from parallax_core.testing.source import FolderSourceConformance, SourceConformance
from parallax_source_hub.source import HubSource
from tests.conformance.harness import list_tests, run_test
from tests.support.fakehub import FakeHub


def make_files(seed: int) -> dict[str, bytes]:
    """Return a model of 200 kB of nothing in particular."""
    head = json.dumps({"w": {"dtype": "U8", "shape": [200_000], "data_offsets": [0, 200_000]}}).encode()
    weights = struct.pack("<Q", len(head)) + head + bytes(seed + i % 251 & 255 for i in range(200_000))
    return {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": weights}


class TestHub(SourceConformance):
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


class TestLocal(FolderSourceConformance):
    unknown = "no/such/folder"
    impossible = "\0"

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        folder = tmp_path / "mine"
        folder.mkdir()
        for name, content in make_files(0).items():
            (folder / name).write_bytes(content)
        self.known = (str(folder),)

    def make_source(self, folder: Path) -> ModelSource:
        return LocalSource(SourceContext(folder=folder))


class Shop:
    """A source of two models made up on the spot, in a few steps; healthy, and a base to plant faults in."""

    online = True
    publishing = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str) -> ModelFolder | None:
        if "/" in name:
            raise ParallaxError(f"{name!r} cannot be a model", "leave out the slash")
        path = self.folder / name
        return ModelFolder(path=path, ref=f"shop:{name}") if self.is_complete(path) else None

    def is_complete(self, path: Path) -> bool:
        sizes = {name: len(content) for name, content in make_files(0).items()}
        return all((path / name).is_file() and (path / name).stat().st_size == sizes[name] for name in sizes)

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        if found := self.find(name):
            return found
        if name not in {"apple", "pear"}:
            raise UnknownName(f"there is no {name}", "take an apple or a pear")
        if not Shop.online:
            raise OSError("the network was used")
        draft = self.make_draft(name)
        self.fill(draft, name, progress)
        return self.publish(draft, name)

    def make_draft(self, name: str) -> Path:
        draft = self.folder / ".drafts" / f"{name}-{id(self)}"
        draft.mkdir(parents=True, exist_ok=True)
        return draft

    def fill(self, draft: Path, name: str, progress: Progress) -> None:
        files = make_files(len(name))
        for count, (file, content) in enumerate(files.items(), 1):
            (draft / file).write_bytes(content[: len(content) // 2])
            progress(name, count - 1, len(files), "items")
            (draft / file).write_bytes(content)
            progress(name, count, len(files), "items")

    def publish(self, draft: Path, name: str) -> ModelFolder:
        path = self.folder / name
        with Shop.publishing:  # another fetch may publish the same model
            if not self.is_complete(path):
                shutil.rmtree(path, ignore_errors=True)
                draft.rename(path)
            shutil.rmtree(draft, ignore_errors=True)
        return ModelFolder(path=path, ref=f"shop:{name}")

    def stored(self) -> Sequence[StoredModel]:
        if not self.folder.is_dir():
            return []
        paths = sorted(path for path in self.folder.iterdir() if self.is_complete(path))
        return [StoredModel(name=path.name, path=path, size_bytes=self.measure(path)) for path in paths]

    def measure(self, path: Path) -> int:
        return sum(file.stat().st_size for file in path.iterdir())

    def remove(self, name: str) -> int:
        paths = [self.folder / name, *self.folder.glob(f".drafts/{name}-*")]
        there = [path for path in paths if path.is_dir()]
        if not there:
            raise UnknownName(f"{name} is not stored here")
        freed = sum(self.measure(path) for path in there)
        for path in there:
            self.delete(path)
        return freed

    def delete(self, path: Path) -> None:
        shutil.rmtree(path)


class ShopKit(SourceConformance):
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


class Partial(Shop):
    """Fills the folder where a model is complete by its place."""

    def make_draft(self, name: str) -> Path:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def is_complete(self, path: Path) -> bool:
        return (path / "config.json").is_file()

    def publish(self, draft: Path, name: str) -> ModelFolder:
        return ModelFolder(path=draft, ref=f"shop:{name}")


class Stuck(Shop):
    """Cannot begin again where something was begun."""

    def make_draft(self, name: str) -> Path:
        draft = self.folder / ".drafts" / f"{name}-1"
        draft.mkdir(parents=True)
        return draft


class Stale(Stuck):
    """Takes files that are there for finished."""

    def make_draft(self, name: str) -> Path:
        self.draft = self.folder / ".drafts" / f"{name}-1"
        self.draft.mkdir(parents=True, exist_ok=True)
        return self.draft

    def fill(self, draft: Path, name: str, progress: Progress) -> None:
        for file, content in make_files(len(name)).items():
            if not (draft / file).exists():
                (draft / file).write_bytes(content[: len(content) // 2])
                progress(name, 0, 1)
                (draft / file).write_bytes(content)
        progress(name, 1, 1)

    def is_complete(self, path: Path) -> bool:
        return path.name in {"apple", "pear"} and (path / "model.safetensors").is_file()


class Loose(Shop):
    """Leaves the files when a model is removed."""

    def delete(self, path: Path) -> None:
        (path / "config.json").unlink(missing_ok=True)


class Chatty(Shop):
    """Asks the network whether what is complete is still current."""

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        if not Shop.online:
            raise OSError("the network was used")
        return super().fetch(name, progress)


class Unsorted(Shop):
    def stored(self) -> Sequence[StoredModel]:
        return super().stored()[::-1]


class Swallowing(Shop):
    """Goes on whatever the progress raises."""

    def fill(self, draft: Path, name: str, progress: Progress) -> None:
        def deaf(task: str, done: int, total: int | None, unit: object = "bytes") -> None:
            try:
                progress(task, done, total)
            except BaseException:  # noqa: BLE001 - the fault
                return

        super().fill(draft, name, deaf)


class Slow(Shop):
    """Never says that it is finished."""

    def fill(self, draft: Path, name: str, progress: Progress) -> None:
        super().fill(draft, name, lambda task, done, total, unit="bytes": progress(task, done, 1 + (total or 0), unit))


class Rewriting(Shop):
    """Writes what is there again."""

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        model = super().fetch(name, progress)
        (model.path / "config.json").touch()
        return model


class Curt(Shop):
    """Says nothing that helps."""

    def fetch(self, name: str, progress: Progress) -> ModelFolder:
        try:
            return super().fetch(name, progress)
        except UnknownName as error:
            raise UnknownName(error.message) from error


class Open(Shop):
    """Finds nothing wrong with any name."""

    def find(self, name: str) -> ModelFolder | None:
        return super().find(name.replace("/", ""))


class Hollow(Shop):
    """Forgets the tokenizer."""

    def publish(self, draft: Path, name: str) -> ModelFolder:
        (draft / "tokenizer.json").unlink()
        draft.rename(self.folder / name)
        return ModelFolder(path=self.folder / name, ref=f"shop:{name}")


class Eager(Shop):
    """Makes a model where it is only asked for one."""

    def find(self, name: str) -> ModelFolder | None:
        return super().find(name) or (self.publish(self._fill(name), name) if name in {"apple", "pear"} else None)

    def _fill(self, name: str) -> Path:
        draft = self.make_draft(name)
        self.fill(draft, name, lambda task, done, total, unit="bytes": None)
        return draft


class Clashing(Shop):
    """Uses one draft for all, and no lock; two fetches come to it together, whenever there are two."""

    meeting = threading.Barrier(2)

    def make_draft(self, name: str) -> Path:
        try:
            self.meeting.wait(1)
        except threading.BrokenBarrierError:  # there is only one
            self.meeting.reset()
        draft = self.folder / ".drafts" / name
        draft.mkdir(parents=True)
        return draft


class Lenient(Shop):
    """Removes what is not there."""

    def remove(self, name: str) -> int:
        try:
            return super().remove(name)
        except UnknownName:
            return 0


FAULTS: list[tuple[type[Shop], str, str]] = [
    (Partial, "test_interrupted_fetch_leaves_nothing_that_looks_complete", "find returns an incomplete model"),
    (Partial, "test_damaged_model_is_not_complete", "is damaged is found"),
    (Stuck, "test_interrupted_fetch_can_be_resumed", "FileExistsError"),
    (Stale, "test_interrupted_fetch_can_be_resumed", "returned different files"),
    (Loose, "test_removed_model_is_gone", "of a removed model are left"),
    (Loose, "test_remains_of_an_interrupted_fetch_can_be_removed", "are left of an interrupted fetch"),
    (Chatty, "test_complete_model_is_found_without_the_network", "used the network"),
    (Unsorted, "test_stored_models_are_sorted_and_complete", "are listed as"),
    (Swallowing, "test_interrupted_fetch_leaves_nothing_that_looks_complete", "did not end the fetch"),
    (Slow, "test_progress_reaches_its_total", "ended with 3 of 4 done"),
    (Rewriting, "test_second_fetch_changes_nothing", "wrote the files again"),
    (Curt, "test_unknown_model_is_refused_with_a_hint", "without a hint"),
    (Open, "test_impossible_name_is_refused", "did not raise ParallaxError"),
    (Hollow, "test_fetched_model_is_a_model_folder", "has no tokenizer.json"),
    (Eager, "test_model_is_not_found_before_it_is_fetched", "never fetched, but is found"),
    (Clashing, "test_two_fetches_at_once_give_one_model", "of two concurrent fetches"),
    (Lenient, "test_only_what_is_stored_can_be_removed", "did not raise UnknownName"),
]


@pytest.mark.parametrize(("source", "name", "finding"), FAULTS)
def test_kit_catches_a_fault(source: type[Shop], name: str, finding: str) -> None:
    assert finding in run_test(type("Kit", (ShopKit,), {"source": source}), name)


def test_every_test_of_the_kit_catches_something() -> None:
    assert set(list_tests(SourceConformance)) == {name for _, name, _ in FAULTS}
