"""The kit for sources that can fetch a part of a model, such as the layers of a stage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.checkpoint.reader import find_missing, read_tensors
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.source import ModelFolder, PartialSource
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.source import (
    IMPOSSIBLE,
    NOT_STORED,
    REMAINS_BYTES,
    REMOVE,
    WAIT_S,
    SourceConformance,
    count_bytes,
    interrupt_fetch,
    read_files,
)

FOLDER = "A partial model has a folder, which stays the same while more is fetched into it"
HOLES = "A weight file in it may have holes: it then has a journal beside it"
NO_MODEL = "``find`` and ``stored`` ignore a partial model"
COMPLETES = "``fetch`` completes it, and ``remove`` deletes it"
AT_ONCE = "several processes may fetch into one folder at the same time"
WITHOUT = "Return the model's folder with everything but the weights"
TENSORS = "at least the wanted tensors"
OFFLINE = "If all of that is on this machine, the network is not used"
PARTS = "Return the models of which only a part is on this machine, sorted by name"

Tensors = dict[str, bytes]


class PartialSourceConformance(SourceConformance):
    """Holds a source that is a `PartialSource` as well to its whole contract.

    The first of ``known`` has at least two tensors.
    """

    def make_partial(self, folder: Path) -> PartialSource:
        """Return the source as a `PartialSource`; see `make_source`."""
        source = self.make_source(folder)
        assert isinstance(source, PartialSource), f"{type(source).__name__} lacks a method of PartialSource"
        return source

    def test_everything_but_the_weights_comes_alone(self, tmp_path: Path) -> None:
        """Configuration and tokenizer are those of the whole model; the second time, the network is not needed."""
        whole = self._fetch_whole(tmp_path)
        model = self.make_partial(tmp_path / "models").fetch_without_weights(self.known[0], silent)
        small = {name: content for name, content in whole.items() if not name.endswith(".safetensors")}
        found = {name: content for name, content in read_files(model.path).items() if name in small}
        assert found == small, broken(f"of the files {sorted(small)}, only {sorted(found)} are right", WITHOUT)
        with self.go_offline():
            again = self.make_partial(tmp_path / "models").fetch_without_weights(self.known[0], silent)
        assert again == model, broken(f"the second time, {again} was returned instead of {model}", WITHOUT)

    def test_wanted_tensors_are_those_of_the_model(self, tmp_path: Path) -> None:
        """Each half of the tensors, fetched alone, is as in the whole model, and no hole passes for a tensor."""
        for number, half in enumerate(self._halves(tmp_path)):
            folder = tmp_path / f"models {number}"
            self._check_tensors(tmp_path, self._fetch_half(folder, half), half)

    def test_part_is_listed_as_such_and_is_no_model(self, tmp_path: Path) -> None:
        """It is neither found nor stored, but listed with its folder, and with sizes that can be."""
        half, _ = self._halves(tmp_path)
        source, part = self.make_source(tmp_path / "models"), self.make_partial(tmp_path / "models")
        model = self._fetch_half(tmp_path / "models", half)
        listed, one = part.stored_partial(), part.find_partial(self.known[0])
        if source.find(self.known[0]) is not None:  # the source has fetched everything
            assert not find_missing(model.path), broken("a model with holes is found", NO_MODEL)
            assert not listed and one is None, broken(f"a complete model is listed as a part: {listed}", PARTS)  # noqa: PT018
            return
        assert not source.stored(), broken(f"a part of a model is stored: {source.stored()}", NO_MODEL)
        assert [each.path for each in listed] == [model.path], broken(f"parts are listed as {listed}", PARTS)
        assert one == listed[0], broken(f"{one} is found, but {listed[0]} is listed", PARTS)
        total = listed[0].total_bytes or 0
        assert 0 < listed[0].size_bytes < total, broken(f"a part of a model is described as {listed[0]}", PARTS)

    def test_nothing_is_here_before_it_is_fetched(self, tmp_path: Path) -> None:
        """No part is found or listed, offline; and what cannot be a name is refused."""
        with self.go_offline():
            source = self.make_partial(tmp_path / "models")
            found, listed = source.find_partial(self.known[0]), source.stored_partial()
        assert found is None and not listed, broken(f"before any fetch, {found} is found and {listed} listed", PARTS)  # noqa: PT018
        with expect(ParallaxError, f"finding a part of {self.impossible!r}", IMPOSSIBLE):
            source.find_partial(self.impossible)

    def test_more_is_added_to_the_same_folder(self, tmp_path: Path) -> None:
        """The second half comes to the first, in the folder that a stage may have open, and the first one stays."""
        first, second = self._halves(tmp_path)
        model = self._fetch_half(tmp_path / "models", first)
        again = self._fetch_half(tmp_path / "models", second)
        assert again == model, broken(f"the first part is in {model.path}, the second in {again.path}", FOLDER)
        self._check_tensors(tmp_path, model, first | second)

    def test_fetch_completes_a_part(self, tmp_path: Path) -> None:
        """The whole model then lies in the same folder; it is found and stored, and is no part any more."""
        half, _ = self._halves(tmp_path)
        source, partial = self.make_source(tmp_path / "models"), self.make_partial(tmp_path / "models")
        part = self._fetch_half(tmp_path / "models", half)
        model = source.fetch(self.known[0], silent)
        assert model.path == part.path, broken(f"a part was in {part.path}, and the model is in {model.path}", FOLDER)
        is_whole = read_files(model.path) == self._fetch_whole(tmp_path) and not find_missing(model.path)
        assert is_whole, broken("a part that was completed is not the model", COMPLETES)
        is_stored = source.find(self.known[0]) == model and not partial.stored_partial()
        assert is_stored, broken(f"after a fetch, parts are {partial.stored_partial()}", COMPLETES)

    def test_part_that_is_here_needs_no_network(self, tmp_path: Path) -> None:
        """Wanted tensors that are here are not asked for again, by another process either."""
        half, _ = self._halves(tmp_path)
        model = self._fetch_half(tmp_path / "models", half)
        with self.go_offline():
            try:
                again = self._fetch_half(tmp_path / "models", half)
            except Exception as error:
                fault = f"fetching a part that is here used the network: {type(error).__name__}: {error}"
                raise AssertionError(broken(fault, OFFLINE)) from error
        assert again == model, broken(f"the second time, {again} was returned instead of {model}", FOLDER)

    def test_interrupted_part_has_no_unknown_hole(self, tmp_path: Path) -> None:
        """Wherever it ends: what is there is right or known to be missing, and the next process fetches the rest."""
        half, _ = self._halves(tmp_path)
        for folder in interrupt_fetch(tmp_path, lambda folder, tell: self._fetch_half(folder, half, tell)):
            if found := self.make_partial(folder).find_partial(self.known[0]):
                self._check_tensors(tmp_path, ModelFolder(path=found.path, ref=""), set())
            self._check_tensors(tmp_path, self._fetch_half(folder, half), half)

    def test_two_parts_at_once_go_into_one_folder(self, tmp_path: Path) -> None:
        """Two sources that fetch different tensors into one folder at the same time both get theirs."""
        halves = self._halves(tmp_path)
        barrier = threading.Barrier(2)
        found: list[ModelFolder | BaseException] = []

        def fetch(half: Tensors) -> None:
            barrier.wait(WAIT_S)
            try:
                found.append(self._fetch_half(tmp_path / "models", half))
            except BaseException as error:  # noqa: BLE001 - it is shown below
                found.append(error)

        threads = [threading.Thread(target=fetch, args=(half,), daemon=True) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        models = [model for model in found if isinstance(model, ModelFolder)]
        is_one = len(models) == len(threads) and models[0] == models[1]
        assert is_one, broken(f"of two concurrent fetches, these returned: {found}", AT_ONCE)
        self._check_tensors(tmp_path, models[0], halves[0] | halves[1])

    def test_part_can_be_removed(self, tmp_path: Path) -> None:
        """Its bytes are freed, it is listed no more, and removing it twice is refused."""
        half, _ = self._halves(tmp_path)
        folder = tmp_path / "models"
        source, part = self.make_source(folder), self.make_partial(folder)
        self._fetch_half(folder, half)
        freed = source.remove(self.known[0])
        left = count_bytes(folder)
        assert left <= REMAINS_BYTES, broken(f"{left} bytes of a removed part are left", REMOVE)
        is_right = freed >= sum(map(len, half.values()))
        assert is_right, broken(f"{freed} bytes are reported as freed by removing a part", REMOVE)
        assert not part.stored_partial(), broken("a removed part is listed", REMOVE)
        with expect(UnknownName, "removing a part twice", NOT_STORED):
            source.remove(self.known[0])

    def _fetch_half(self, folder: Path, half: Tensors, progress: Progress = silent) -> ModelFolder:
        return self.make_partial(folder).fetch_tensors(self.known[0], half.__contains__, progress)

    def _halves(self, tmp_path: Path) -> tuple[Tensors, Tensors]:
        """Return the tensors of the first known model, in two halves."""
        path = self.make_source(tmp_path / "whole").fetch(self.known[0], silent).path
        tensors = read_contents(path, lambda _: True)
        names = sorted(tensors)
        assert len(names) > 1, f"{self.known[0]!r} has {len(names)} tensors, and the kit needs two"
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        return {name: tensors[name] for name in halves[0]}, {name: tensors[name] for name in halves[1]}

    def _check_tensors(self, tmp_path: Path, model: ModelFolder, wanted: Tensors | set[str]) -> None:
        """Check that wanted tensors are there, and that all that are there are those of the model."""
        first, second = self._halves(tmp_path)
        whole, missing = first | second, find_missing(model.path)
        absent = sorted(missing.intersection(wanted))
        assert not absent, broken(f"the wanted tensors {absent} are missing", TENSORS)
        if any(model.path.glob("*.safetensors")):
            here = read_contents(model.path, lambda name: name not in missing)
            wrong = sorted(name for name, content in here.items() if content != whole[name])
            assert not wrong, broken(f"{wrong} differ from the model and are not marked as missing", HOLES)


def read_contents(folder: Path, is_wanted: Callable[[str], bool]) -> Tensors:
    """Return the bytes of the tensors of a model that are wanted."""
    return {name: bytes(tensor.data) for name, tensor in read_tensors(folder, is_wanted, silent)}
