"""The kit for backends passes on the toy as a backend, and sees each fault that is planted into it."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import (
    BackendSpec,
    DeviceMemory,
    DeviceSpeed,
    LayerRange,
    ParallaxError,
    Ref,
    Stage,
    StagePlan,
    Unsupported,
    silent,
)
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.stage import StageConformance
from parallax_core.testing.toy import Toy, ToyStage
from tests.conformance.harness import list_tests, run_test
from tests.conformance.toybackend import KINDS, SPEC, TASK, WEIGHTS, ToyBackend, ToyBenchmark, write_model


@cache
def make_model() -> Path:
    return write_model(Path(tempfile.mkdtemp()) / "toy")


class ToyBackendKit(BackendConformance):
    spec = SPEC
    num_layers = len(KINDS)

    def make_model(self) -> Path:
        return make_model()


class TestToyBackend(ToyBackendKit):
    pass


class TestToyBackendAndItsStages(ToyBackendKit, StageConformance):
    pass


class AnyDtype(ToyBackend):
    """Takes any dtype, and computes in its own."""

    def list_dtypes(self) -> set[str]:
        return super().list_dtypes() | {"float7"}


class AnyModel(ToyBackend):
    """Takes any model to be one of its own."""

    def read_config(self, plan: StagePlan) -> dict[str, Any]:
        return super().read_config(plan) | {"model_type": "toy"}


class AnyDevice(ToyBackend):
    def open_stage(self, plan: StagePlan) -> Stage:
        return super().open_stage(replace(plan, device=""))


class TruncatedWeights(ToyBackend):
    """Loads what is there of the weights."""

    def load_weights(self, plan: StagePlan) -> None:
        plan.progress(TASK, 0, WEIGHTS)
        plan.progress(TASK, WEIGHTS, WEIGHTS)


class ReadsHoles(ToyBackend):
    """Reads weights as they lie in their files, whichever of them were fetched."""

    def load_weights(self, plan: StagePlan) -> None:
        for path in plan.model.glob("*.safetensors.partial"):
            path.unlink()
        super().load_weights(plan)


class RawErrors(ToyBackend):
    """Lets the errors of the file system through."""

    def read_config(self, plan: StagePlan) -> dict[str, Any]:
        (plan.model / "config.json").read_bytes()
        return super().read_config(plan)


class NoHints(ToyBackend):
    def open_stage(self, plan: StagePlan) -> Stage:
        try:
            return super().open_stage(plan)
        except ParallaxError as error:
            raise type(error)(error.message) from error


class NoProgress(ToyBackend):
    def load_weights(self, plan: StagePlan) -> None:
        super().load_weights(replace(plan, progress=silent))


class UnfinishedProgress(ToyBackend):
    def load_weights(self, plan: StagePlan) -> None:
        super().load_weights(plan)
        plan.progress("warming up", 1, 2, "items")


class BackwardProgress(ToyBackend):
    def load_weights(self, plan: StagePlan) -> None:
        super().load_weights(plan)
        plan.progress(TASK, 0, WEIGHTS)


class ProgressTooFar(ToyBackend):
    def load_weights(self, plan: StagePlan) -> None:
        plan.progress(TASK, WEIGHTS + 1, WEIGHTS)


class DeafToProgress(ToyBackend):
    """Goes on whatever the callback raises."""

    def load_weights(self, plan: StagePlan) -> None:
        with suppress(Exception):
            super().load_weights(plan)


class LeavesAThread(ToyBackend):
    """Loads in a thread that goes on when the load was interrupted."""

    over = threading.Event()

    def load_weights(self, plan: StagePlan) -> None:
        threading.Thread(target=self.over.wait, daemon=True).start()
        super().load_weights(plan)


class ClampedLayers(ToyBackend):
    """Gives the layers there are of those that were asked for."""

    def choose_layers(self, plan: StagePlan, num_layers: int) -> LayerRange:
        asked = plan.layers or LayerRange(0, num_layers)
        start = min(max(asked.start, 0), num_layers - 1)
        return LayerRange(start, max(start + 1, min(asked.stop, num_layers)))


class RefusesWhatItOpens(ToyBackend):
    """Says of a model which it can open that it cannot."""

    def check_model(self, plan: StagePlan) -> None:
        raise Unsupported(f"no backend runs {plan.model}", "choose another model")


class AllMemory(ToyBackend):
    def count_pages(self, plan: StagePlan) -> int:
        return 100


class OtherVersions(ToyBackend):
    """Gives its weights another version each time it loads them."""

    count = 0

    def open_stage(self, plan: StagePlan) -> Stage:
        type(self).count += 1
        stage = super().open_stage(plan)
        assert isinstance(stage, ToyStage)
        stage.restate(weights_version=str(self.count))
        return stage


class StillBenchmark(ToyBenchmark):
    """Reads nothing at all."""

    speed = DeviceSpeed(flops=1e9, bandwidth=0.0)


class EndlessBenchmark(ToyBenchmark):
    """Divides by the resolution of its clock."""

    speed = DeviceSpeed(flops=math.inf, bandwidth=1e9)


class BackwardBenchmark(ToyBenchmark):
    """Has a step that takes less than no time."""

    speed = DeviceSpeed(flops=1e9, bandwidth=1e9, step_s=-1e-6)


class GenerousBenchmark(ToyBenchmark):
    """Has more free memory than memory."""

    memory = DeviceMemory(2**20, 2**21)


class BusyBenchmark(ToyBenchmark):
    """Goes on measuring."""

    def measure_speed(self, limit_s: float) -> DeviceSpeed:
        threading.Thread(target=LeavesAThread.over.wait, daemon=True).start()
        return super().measure_speed(limit_s)


class IgnoresLeases(ToyBackend):
    """Opens ordinary stages where leases are asked for."""

    def open_leased(self, toy: Toy, layers: LayerRange, pages: int) -> Stage:
        return toy.open(layers, num_pages=pages, context=64)


FAULTS: list[tuple[Callable[[], ToyBackend], str, str]] = [
    (IgnoresLeases, "test_spec_says_whether_there_are_leases", "there are leases, and its stage has no leases"),
    (AnyDtype, "test_dtype_that_does_not_exist_is_refused", "did not raise Unsupported"),
    (AnyModel, "test_architecture_nobody_knows_is_refused", "did not raise Unsupported"),
    (AnyDevice, "test_device_that_does_not_exist_is_refused", "did not raise ParallaxError"),
    (TruncatedWeights, "test_damaged_folder_is_refused", "*.safetensors cut to 50% did not raise"),
    (ReadsHoles, "test_hole_is_never_read", "of which no tensor was fetched did not raise"),
    (RawErrors, "test_damaged_folder_is_refused", "config.json missing raised FileNotFoundError"),
    (RawErrors, "test_folder_that_does_not_exist_is_refused", "raised FileNotFoundError"),
    (NoHints, "test_dtype_that_does_not_exist_is_refused", "has no hint"),
    (NoHints, "test_architecture_nobody_knows_is_refused", "has no hint"),
    (NoHints, "test_layers_that_do_not_exist_are_refused", "without a hint"),
    (NoHints, "test_memory_fraction_is_kept", "has no hint"),
    (NoProgress, "test_progress_is_told", "reports no progress"),
    (UnfinishedProgress, "test_progress_is_told", "did not reach their total"),
    (BackwardProgress, "test_progress_is_told", "from 4096 to 0"),
    (ProgressTooFar, "test_progress_is_told", "4097 of 4096"),
    (DeafToProgress, "test_progress_that_raises_ends_the_work", "did not raise Interrupted"),
    (LeavesAThread, "test_progress_that_raises_ends_the_work", "1 threads are still running"),
    (ClampedLayers, "test_layers_that_do_not_exist_are_refused", "layers 0-4 of a model of 3 did not raise"),
    (RefusesWhatItOpens, "test_model_that_opens_passes_the_check", "no backend runs"),
    (AllMemory, "test_memory_fraction_is_kept", "a billionth of the memory gives 200 pages"),
    (OtherVersions, "test_backends_of_one_factory_are_independent", "stages of the same weights have the versions"),
]


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    LeavesAThread.over.clear()
    yield
    LeavesAThread.over.set()


@pytest.mark.parametrize(("backend", "test", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_fault_is_found(backend: Callable[[], ToyBackend], test: str, words: str) -> None:
    spec = replace(SPEC, factory=Ref(f"tests.conformance.test_backend:{getattr(backend, '__name__', '')}"))
    assert words in run_spec(spec, test)


SPECS: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "My Backend"}, "test_spec_names_what_it_offers", "not a valid name"),
    ({"summary": ""}, "test_spec_names_what_it_offers", "the summary must be one line"),
    ({"factory": Ref("tests.conformance.toybackend:ROOM")}, "test_spec_names_what_it_offers", "cannot be called"),
    ({"leases": False}, "test_spec_says_whether_there_are_leases", "there are no leases, and its stage has leases"),
    ({"probe": Ref("tests.conformance.toyprobe:probe_slowly")}, "test_probe_is_quick_and_light", "the probe took"),
    ({"probe": Ref("tests.conformance.toyprobe:probe_heavily")}, "test_probe_is_quick_and_light", "imported torch"),
    ({"probe": Ref("tests.conformance.toyprobe:probe_badly")}, "test_probe_is_quick_and_light", "no such device"),
    ({"probe": Ref("tests.conformance.toyprobe:probe_wordlessly")}, "test_probe_is_quick_and_light", "nor a reason"),
    ({"probe": Ref("tests.conformance.toyprobe:nothing")}, "test_probe_is_quick_and_light", "has no attribute"),
    *(
        ({"benchmark": Ref(f"tests.conformance.test_backend:{name}")}, "test_benchmark_measures_the_device", words)
        for name, words in {
            "StillBenchmark": "bandwidth is 0.0",
            "EndlessBenchmark": "flops is inf",
            "BackwardBenchmark": "step_s is -1e-06",
            "GenerousBenchmark": "2097152 of 1048576 bytes are free",
            "BusyBenchmark": "1 threads are still running after the benchmark",
        }.items()
    ),
]


@pytest.mark.parametrize(("changes", "test", "words"), SPECS)
def test_fault_of_a_spec_is_found(changes: dict[str, Any], test: str, words: str) -> None:
    assert words in run_spec(replace(SPEC, **changes), test)


def run_spec(spec: BackendSpec, test: str) -> str:
    """Run a test of the kit on a backend with a fault."""
    return run_test(type("FaultyKit", (ToyBackendKit,), {"spec": spec}), test)


def test_every_test_of_the_kit_finds_some_fault() -> None:
    own = {name for name in list_tests(BackendConformance) if name in vars(BackendConformance)}
    assert own - {test for _, test, _ in [*FAULTS, *SPECS]} == set()
