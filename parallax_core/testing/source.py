"""The kits for model sources: `SourceConformance` for stores, `FolderSourceConformance` for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.contracts.progress import Progress, Unit, silent
from parallax_core.contracts.source import ModelFolder, ModelSource
from parallax_core.testing.promise import broken, expect, expect_hint

FIND = "Return the model's folder if it is complete on this machine, without using the network"
IMPOSSIBLE = "if ``name`` cannot be a model of this source"
FETCH = "Return the model's folder, after downloading and converting what is missing"
COMPLETE = "If the model is complete on this machine, the network is not used"
TWO = "Two processes may fetch the same model at the same time"
INTERRUPTED = "An interrupted fetch leaves nothing that looks complete"
NO_MODEL = "with a hint, if there is no such model or it cannot be used"
STORED = "Return the models that are complete on this machine, sorted by name"
STORED_NAME = "The name to pass to ``fetch`` and ``remove`` of the same source"
REMOVE = "Delete a stored model, or the remains of an interrupted fetch, and return the bytes freed"
NOT_STORED = "if it is not stored here"
LAYOUT = "A model on disk in the standard layout"
PROGRESS = "Report that ``done`` of ``total`` units of ``task`` are finished"
PROGRESS_ENDS = "An exception from the callback ends the work"

WAIT_S = 60.0
REMAINS_BYTES = 1024
"""The most bytes a source may keep of a removed model, such as locks."""
STOPS = 5
"""The number of points, from the first progress report to the last, at which a fetch is interrupted."""

Contents = dict[str, bytes]


class Interrupt(BaseException):
    """Interrupts a fetch, as Ctrl-C would."""


class FolderSourceConformance:
    """Holds a source to what all sources promise.

    Subclass it in a test module under a name that begins with ``Test``. What the source needs, such as a server, is
    best set up by a fixture of the subclass with ``autouse``.
    """

    known: Sequence[str]
    """Names of models that can be fetched; at least two for `SourceConformance`."""
    unknown: str
    """A valid name of a model that does not exist."""
    impossible: str
    """An invalid name for this source."""

    def make_source(self, folder: Path) -> ModelSource:
        """Return the source, keeping its models in ``folder``; called several times with the same one."""
        raise NotImplementedError

    def go_offline(self) -> AbstractContextManager[object]:
        """Return a context without network, in which any use of it fails; by default, one without effect."""
        return nullcontext()

    def test_fetched_model_is_a_model_folder(self, tmp_path: Path) -> None:
        """Every known model is fetched, into a folder with the parts of a model."""
        source = self.make_source(tmp_path / "models")
        for name in self.known:
            model = source.fetch(name, silent)
            check_layout(model)

    def test_complete_model_is_found_without_the_network(self, tmp_path: Path) -> None:
        """Once it is complete, find and fetch return the same folder, offline, and so does another process."""
        folder = tmp_path / "models"
        model = self.make_source(folder).fetch(self.known[0], silent)
        with self.go_offline():
            for source in (self.make_source(folder), self.make_source(folder)):
                found = source.find(self.known[0])
                assert found == model, broken(f"after a fetch, find returned {found}, not {model}", FIND)
                again = self._fetch_offline(source)
                assert again == model, broken(f"a second fetch returned {again}, not {model}", COMPLETE)

    def test_second_fetch_changes_nothing(self, tmp_path: Path) -> None:
        """No file of a complete model is written again."""
        source = self.make_source(tmp_path / "models")
        before = list_times(source.fetch(self.known[0], silent).path)
        after = list_times(source.fetch(self.known[0], silent).path)
        assert after == before, broken("a second fetch wrote the files again", COMPLETE)

    def test_unknown_model_is_refused_with_a_hint(self, tmp_path: Path) -> None:
        """A name there is not gives an error that says what to do, and leaves nothing."""
        source = self.make_source(tmp_path / "models")
        with expect_hint(f"fetching {self.unknown!r}, which does not exist,", NO_MODEL):
            source.fetch(self.unknown, silent)
        assert not source.stored(), broken(f"after a failed fetch, {source.stored()} are stored", STORED)

    def test_impossible_name_is_refused(self, tmp_path: Path) -> None:
        """What cannot be a name is no name for any call."""
        source = self.make_source(tmp_path / "models")
        with expect(ParallaxError, f"finding {self.impossible!r}", IMPOSSIBLE):
            source.find(self.impossible)
        with expect_hint(f"fetching {self.impossible!r}", NO_MODEL):
            source.fetch(self.impossible, silent)

    def _fetch_offline(self, source: ModelSource) -> ModelFolder:
        try:
            return source.fetch(self.known[0], silent)
        except Exception as error:
            fault = f"fetching a complete model used the network: {type(error).__name__}: {error}"
            raise AssertionError(broken(fault, COMPLETE)) from error


class SourceConformance(FolderSourceConformance):
    """Holds a source that keeps models to its whole contract."""

    def test_model_is_not_found_before_it_is_fetched(self, tmp_path: Path) -> None:
        """Find says None, offline, and nothing is stored; looking creates nothing that counts."""
        with self.go_offline():
            source = self.make_source(tmp_path / "models")
            for name in (*self.known, self.unknown):
                found = source.find(name)
                assert found is None, broken(f"{name!r} was never fetched, but is found at {found}", FIND)
            assert not source.stored(), broken(f"before any fetch, {source.stored()} are stored", STORED)

    def test_stored_models_are_sorted_and_complete(self, tmp_path: Path) -> None:
        """In whatever order they were fetched: sorted, with their folders, their sizes and names that fetch takes."""
        names = sorted(self.known)
        for turn, order in enumerate((names, names[::-1])):
            source = self.make_source(tmp_path / f"models {turn}")
            folders = {source.fetch(name, silent).path for name in order}
            stored = list(source.stored())
            got = [model.name for model in stored]
            assert got == sorted(got), broken(f"stored models are listed as {got}", STORED)
            paths = {model.path for model in stored}
            assert paths == folders, broken(f"the stored models are {paths}, but {folders} were fetched", STORED)
            for model in stored:
                again = source.fetch(model.name, silent).path
                assert again == model.path, broken(f"fetching {model.name!r} returned {again}", STORED_NAME)
                on_disk = count_bytes(model.path)
                is_right = count_weights(model.path) <= model.size_bytes <= on_disk
                fault = f"{model.name!r} has {on_disk} bytes on disk, but {model.size_bytes} are listed"
                assert is_right, broken(fault, STORED)

    def test_progress_reaches_its_total(self, tmp_path: Path) -> None:
        """What is done never goes back within a task, never exceeds its total, and reaches it."""
        reports: dict[str, list[tuple[int, int | None]]] = {}

        def note(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
            del unit
            reports.setdefault(task, []).append((done, total))

        self.make_source(tmp_path / "models").fetch(self.known[0], note)
        assert reports, broken("a fetch reported no progress", PROGRESS)
        for task, calls in reports.items():
            numbers = [done for done, _ in calls]
            assert numbers == sorted(numbers), broken(f"progress of {task!r} went back: {numbers}", PROGRESS)
            is_within = all(total is None or 0 <= done <= total for done, total in calls)
            assert is_within, broken(f"progress of {task!r} exceeded its total: {calls}", PROGRESS)
            done, total = calls[-1]
            is_over = total is None or done == total
            assert is_over, broken(f"{task!r} ended with {done} of {total} done", PROGRESS)

    def test_interrupted_fetch_leaves_nothing_that_looks_complete(self, tmp_path: Path) -> None:
        """Wherever it ends: what is found afterwards is the whole model, or nothing."""
        whole = self._fetch_whole(tmp_path)
        for folder in self._interrupt(tmp_path):
            with self.go_offline():
                source = self.make_source(folder)
                found = source.find(self.known[0])
                is_whole = found is None or read_files(found.path) == whole
                assert is_whole, broken("after an interrupted fetch, find returns an incomplete model", INTERRUPTED)
                stored = list(source.stored())
                is_same = bool(stored) == (found is not None)
                assert is_same, broken(f"after an interrupted fetch, {stored} are stored", INTERRUPTED)

    def test_interrupted_fetch_can_be_resumed(self, tmp_path: Path) -> None:
        """The next fetch, by another process, gives the whole model."""
        whole = self._fetch_whole(tmp_path)
        for folder in self._interrupt(tmp_path):
            model = self.make_source(folder).fetch(self.known[0], silent)
            is_whole = read_files(model.path) == whole
            assert is_whole, broken("after an interrupted fetch, the next one returned different files", FETCH)

    def test_remains_of_an_interrupted_fetch_can_be_removed(self, tmp_path: Path) -> None:
        """Remove deletes them, or raises UnknownName without any."""
        for folder in self._interrupt(tmp_path):
            source, before = self.make_source(folder), count_bytes(folder)
            try:
                freed = source.remove(self.known[0])
            except UnknownName:
                freed = 0
            left = count_bytes(folder)
            assert left <= REMAINS_BYTES, broken(f"{left} bytes are left of an interrupted fetch", REMOVE)
            is_right = freed <= before
            assert is_right, broken(f"{freed} bytes were freed of {before}", REMOVE)

    def test_damaged_model_is_not_complete(self, tmp_path: Path) -> None:
        """Without its weights, or with a part of them, a model is not found, and fetch mends it."""
        folder = tmp_path / "models"
        model = self.make_source(folder).fetch(self.known[0], silent)
        whole = read_files(model.path)
        for cut in (0, 1):
            weights = next(model.path.glob("*.safetensors"))
            content = weights.read_bytes()
            weights.unlink()
            if cut:
                weights.write_bytes(content[: len(content) // 2])
            source = self.make_source(folder)
            found = source.find(self.known[0])
            assert found is None, broken(f"a model whose {weights.name} is damaged is found", FIND)
            assert not source.stored(), broken("a damaged model is stored", STORED)
            mended = read_files(source.fetch(self.known[0], silent).path)
            assert mended == whole, broken("fetching a damaged model did not mend it", FETCH)

    def test_two_fetches_at_once_give_one_model(self, tmp_path: Path) -> None:
        """Two sources that fetch one model into one folder at the same time both return it whole."""
        whole, folder = self._fetch_whole(tmp_path), tmp_path / "models"
        barrier = threading.Barrier(2)
        found: list[ModelFolder | BaseException] = []

        def fetch() -> None:
            source = self.make_source(folder)
            barrier.wait(WAIT_S)
            try:
                found.append(source.fetch(self.known[0], silent))
            except BaseException as error:  # noqa: BLE001 - it is shown below
                found.append(error)

        threads = [threading.Thread(target=fetch, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        models = [model for model in found if isinstance(model, ModelFolder)]
        assert len(models) == len(threads), broken(f"of two concurrent fetches, these returned: {found}", TWO)
        for model in models:
            is_whole = model.path == models[0].path and read_files(model.path) == whole
            assert is_whole, broken("two concurrent fetches gave different files than one", TWO)

    def test_removed_model_is_gone(self, tmp_path: Path) -> None:
        """Its bytes are freed and counted, others stay, it can be fetched again, and removing it twice is refused."""
        folder = tmp_path / "models"
        source = self.make_source(folder)
        other = source.fetch(self.known[1], silent)
        kept = count_bytes(folder)
        weights = count_weights(source.fetch(self.known[0], silent).path)
        before = count_bytes(folder)
        freed = source.remove(self.known[0])
        gone = before - count_bytes(folder)
        assert source.find(self.known[0]) is None, broken("a removed model is found", REMOVE)
        assert [model.path for model in source.stored()] == [other.path], broken(
            "other models were removed too", REMOVE
        )
        left = count_bytes(folder) - kept
        assert left <= REMAINS_BYTES, broken(f"{left} bytes of a removed model are left", REMOVE)
        is_right = weights <= freed <= gone
        assert is_right, broken(f"{freed} bytes are reported as freed, but {gone} were", REMOVE)
        with expect(UnknownName, "removing a model twice", NOT_STORED):
            source.remove(self.known[0])
        check_layout(source.fetch(self.known[0], silent))

    def test_only_what_is_stored_can_be_removed(self, tmp_path: Path) -> None:
        """UnknownName for what was never fetched, known or not."""
        source = self.make_source(tmp_path / "models")
        for name in (self.known[0], self.unknown):
            with expect(UnknownName, f"removing {name!r}, which was never fetched,", NOT_STORED):
                source.remove(name)

    def _fetch_whole(self, tmp_path: Path) -> Contents:
        """Return the files of the first known model, fetched in one go."""
        return read_files(self.make_source(tmp_path / "whole").fetch(self.known[0], silent).path)

    def _interrupt(self, tmp_path: Path) -> Iterator[Path]:
        """Yield folders in which a fetch of the first known model ended early, at several places."""
        return interrupt_fetch(tmp_path, lambda folder, tell: self.make_source(folder).fetch(self.known[0], tell))


class Ending:
    """A progress that counts reports, and ends the work at that of number ``place``, counted from 1."""

    def __init__(self, place: int = 0) -> None:
        self._place = place
        self.reports = 0

    def __call__(self, task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        """Count; see `Progress`."""
        del task, done, total, unit
        self.reports += 1
        if self.reports == self._place:
            raise Interrupt


def interrupt_fetch(tmp_path: Path, fetch: Callable[[Path, Progress], object]) -> Iterator[Path]:
    """Yield folders in which ``fetch``, told a folder and a progress, ended early, at several places."""
    counter = Ending()
    fetch(tmp_path / "counted", counter)
    total = counter.reports
    for place in sorted({1 + (total - 1) * stop // (STOPS - 1) for stop in range(STOPS)} if total else ()):
        folder = tmp_path / f"interrupted {place}"
        with ends_early(place) as progress:
            fetch(folder, progress)
        yield folder


@contextmanager
def ends_early(place: int) -> Iterator[Ending]:
    """Give a progress that ends the work at the report of number ``place``, and check that it did if it came so far.

    How many reports there are may depend on how a network cuts what it carries.
    """
    progress = Ending(place)
    try:
        yield progress
    except Interrupt:
        return
    is_early = progress.reports < place
    assert is_early, broken(f"an exception of report {place} of the progress did not end the fetch", PROGRESS_ENDS)


def check_layout(model: ModelFolder) -> None:
    """Check that a folder has the parts every model has."""
    for part in ("config.json", "tokenizer.json", "*.safetensors"):
        assert any(model.path.glob(part)), broken(f"{model.path} has no {part}", LAYOUT)
    assert model.ref, broken(f"{model} has no ref", "The name with its source")


def read_files(folder: Path) -> Contents:
    """Return the files of a model: all but those that are not in the layout, such as records of the source."""
    paths = [path for path in folder.iterdir() if path.suffix in {".json", ".safetensors"}]
    return {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}


def list_times(folder: Path) -> dict[str, int]:
    """Return when each file was written, in nanoseconds."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def count_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; none if it is not there."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def count_weights(folder: Path) -> int:
    """Return the bytes of the weights of a model."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
