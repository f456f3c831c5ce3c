"""The kit for backends: tests their specs, loading and errors.

Its author names the spec and a small model; together with `StageConformance` it tests all a backend does::

    class TestMine(BackendConformance, StageConformance):
        spec = SPEC
        num_layers = 4
        exact = False

        def make_model(self):
            return FOLDER
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from parallax_core.api import (
    Backend,
    BackendSpec,
    DevicePlan,
    DType,
    LayerRange,
    ModelChecker,
    ParallaxError,
    Stage,
    StagePlan,
    Unit,
    Unsupported,
)
from parallax_core.testing.blocks import bring_blocks
from parallax_core.testing.checks.lease import LeaseChecks
from parallax_core.testing.checks.life import LifeChecks
from parallax_core.testing.holes import punch_holes
from parallax_core.testing.probe import try_probe
from parallax_core.testing.promise import broken, expect, expect_hint

CANNOT = "if this backend cannot run the model's architecture or dtype."
DAMAGED = "with a hint, if the files are damaged or there is too little memory."
ENDS = "An exception from the callback ends the work."
FINISHED = "a task, which is finished when ``done`` reaches ``total``"
SAME_ERROR = "if not; the same error as from `open_stage`."
LEASES = "Whether several pipelines can use a node with this backend: it honours `StagePlan.leased`."
MEASURES = "Measures a device with the kernels that stages use"
PROBE = "Tells whether this machine can run it. Returns within 200 ms and imports no framework."
FRACTION = "The share, from 0 to 1, that KV pages may take of the memory that is free after loading the weights."
TRIALS = 3
FRAMEWORKS = ("jax", "mlx", "mlx_lm", "numpy", "sglang", "tensorflow", "torch", "transformers", "vllm")


class Interrupted(Exception):
    """Raised by a progress callback."""


class BackendConformance(LeaseChecks, LifeChecks):
    """Holds a backend to `parallax_core.contracts.backend`; its stages describe themselves, close, and lease."""

    spec: BackendSpec
    dtype: DType = "float32"
    memory_fraction: float = 0.001
    """A small fraction, so that the pools are small enough to be filled."""
    frameworks: tuple[str, ...] = FRAMEWORKS
    """Modules that a probe must not import."""
    probe_s: float = 0.2
    benchmark_s: float = 0.2
    """Seconds for the benchmark of the device."""

    def make_model(self) -> Path:
        """Return the folder of a small model in the standard layout; nothing writes to it."""
        raise NotImplementedError

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open a stage through the spec."""
        return self.open_plan(self.make_plan(layers))

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Open a stage that serves through leases through the spec; None if the backend has no such stages."""
        try:
            stage = self.open_plan(replace(self.make_plan(layers), leased=True))
        except Unsupported:
            return None
        if "leases" in stage.info.capabilities:
            return stage
        stage.close()
        return None

    def make_plan(self, layers: LayerRange | None = None) -> StagePlan:
        """Return the plan of a stage."""
        return StagePlan(model=self.make_model(), layers=layers, dtype=self.dtype, memory_fraction=self.memory_fraction)

    def open_plan(self, plan: StagePlan) -> Stage:
        """Open a stage with a new backend, and the blocks of the model's adapter, if one is installed."""
        backend: Backend = self.spec.factory.load()()
        return backend.open_stage(bring_blocks(plan, self.spec.name))

    def test_spec_names_what_it_offers(self) -> None:
        """The name can be typed, the summary is one line, and the references load."""
        name, summary = self.spec.name, self.spec.summary
        assert name == name.strip().lower(), f"{name!r} is not a valid name: use lower-case letters, digits and hyphens"
        assert name.replace("-", "").isalnum(), (
            f"{name!r} is not a valid name: use lower-case letters, digits and hyphens"
        )
        assert summary.strip() and "\n" not in summary, f"the summary must be one line, not {summary!r}"  # noqa: PT018
        assert callable(self.spec.factory.load()), f"{self.spec.factory.target} cannot be called"

    def test_probe_is_quick_and_light(self) -> None:
        """In a fresh process it answers in time, with a device or a reason, and has imported no framework."""
        for _ in range(TRIALS):  # another process may have been in the way
            trial = try_probe(self.spec.probe.target, self.frameworks)
            if trial.error or trial.seconds <= self.probe_s:
                break
        assert not trial.error, broken(f"the probe failed in a fresh process: {trial.error}", PROBE)
        fault = f"the probe took {trial.seconds:.3f} s"
        assert trial.seconds <= self.probe_s, broken(fault, PROBE)
        assert not trial.imported, broken(f"the probe imported {', '.join(trial.imported)}", PROBE)
        assert trial.device if trial.ok else trial.reason, "the probe reports neither a device nor a reason"

    def test_backends_of_one_factory_are_independent(self) -> None:
        """Each call of the factory gives a backend; weights have the same version in the stages of both."""
        first, second = self.open_stage(None), self.open_stage(None)
        versions = first.info.weights_version, second.info.weights_version
        first.close()
        second.close()
        assert versions[0] == versions[1], f"stages of the same weights have the versions {versions}"

    def test_spec_says_whether_there_are_leases(self) -> None:
        """Stages serve through leases if the spec says so, and only then."""
        stage = self.open_leased(None)
        if stage is not None:
            stage.close()
        said, found = ("leases" if each else "no leases" for each in (self.spec.leases, stage is not None))
        assert said == found, broken(f"the spec says that there are {said}, and its stage has {found}", LEASES)

    def test_layers_that_do_not_exist_are_refused(self) -> None:
        """A range beyond the model, before it, or empty, is an error that says what to ask for instead."""
        last = self.num_layers
        for layers in (LayerRange(0, last + 1), LayerRange(last, last + 1), LayerRange(-1, last), LayerRange(1, 1)):
            with expect_hint(f"layers {layers.start}-{layers.stop} of a model of {last}", CANNOT):
                self.open_plan(self.make_plan(layers)).close()

    def test_dtype_that_does_not_exist_is_refused(self) -> None:
        """A dtype the backend does not have raises Unsupported, and is not silently another one."""
        with expect(Unsupported, "a dtype called float7", CANNOT) as caught:
            self.open_plan(replace(self.make_plan(), dtype=cast("DType", "float7"))).close()
        assert caught.error, "no error was caught"
        assert caught.error.hint, broken(f"{caught.error.message!r} has no hint", DAMAGED)

    def test_device_that_does_not_exist_is_refused(self) -> None:
        """A device the backend does not have is an error with a hint, and is not silently another one."""
        with expect_hint("a device called no-such-device", DAMAGED):
            self.open_plan(replace(self.make_plan(), device="no-such-device")).close()

    def test_architecture_nobody_knows_is_refused(self) -> None:
        """Another name in config.json raises Unsupported, with a hint."""
        with self._copied() as plan:
            path = plan.model / "config.json"
            config = json.loads(path.read_bytes())
            config |= {"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}
            path.write_text(json.dumps(config), encoding="utf-8")
            with expect(Unsupported, "a model of the architecture NoSuchForCausalLM", CANNOT) as caught:
                self.open_plan(plan).close()
            backend: object = self.spec.factory.load()()
            if isinstance(backend, ModelChecker):
                with expect(Unsupported, "checking a model of the architecture NoSuchForCausalLM", SAME_ERROR):
                    backend.check_model(plan)
        assert caught.error, "no error was caught"
        assert caught.error.hint, broken(f"{caught.error.message!r} has no hint", DAMAGED)

    def test_model_that_opens_passes_the_check(self) -> None:
        """A `ModelChecker` takes the model that it opens."""
        backend: object = self.spec.factory.load()()
        if isinstance(backend, ModelChecker):
            backend.check_model(bring_blocks(self.make_plan(), self.spec.name))

    def test_damaged_folder_is_refused(self) -> None:
        """A config.json or weights cut in half, or gone, are errors with a hint, and never a wrong model."""
        for pattern in ("config.json", "*.safetensors"):
            for keep in (0.5, 0.0, None):
                with self._copied() as plan:
                    for path in plan.model.glob(pattern):
                        self._damage(path, keep)
                    what = "missing" if keep is None else f"cut to {keep:.0%}"
                    with expect_hint(f"a folder with {pattern} {what}", DAMAGED):
                        self.open_plan(plan).close()

    def test_hole_is_never_read(self) -> None:
        """Weights of which only the header was fetched are an error with a hint, and never a model of zeros."""
        for layers in (None, LayerRange(0, self.num_layers)):
            with self._copied() as plan:
                punch_holes(plan.model, lambda _: False)
                with expect_hint("a model of which no tensor was fetched", DAMAGED):
                    self.open_plan(replace(plan, layers=layers)).close()

    def test_folder_that_does_not_exist_is_refused(self) -> None:
        """A model folder that is not there is an error with a hint."""
        with self._copied() as plan, expect_hint("a folder that is not there", DAMAGED):
            self.open_plan(replace(plan, model=plan.model / "nowhere")).close()

    def test_progress_is_told(self) -> None:
        """Loading reports tasks that grow, never beyond their total, and come to it."""
        last: dict[str, tuple[int, int | None]] = {}

        def note(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
            before, _ = last.get(task, (0, None))
            assert unit in {"bytes", "items"}, f"{task}: progress is in {unit!r}, not in bytes or items"
            assert before <= done, broken(f"{task}: progress went back from {before} to {done}", FINISHED)
            assert total is None or done <= total, broken(f"{task}: progress reached {done} of {total}", FINISHED)
            last[task] = done, total

        self.open_plan(replace(self.make_plan(), progress=note)).close()
        assert last, broken("loading a model reports no progress", FINISHED)
        unfinished = {task: state for task, state in last.items() if state[1] not in {None, state[0]}}
        assert not unfinished, broken(f"these tasks did not reach their total: {unfinished}", FINISHED)

    def test_progress_that_raises_ends_the_work(self) -> None:
        """What the callback raises comes out of open_stage, no thread goes on, and the next stage opens."""

        def interrupt(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
            raise Interrupted(f"{task} {done} {total} {unit}")

        before = threading.active_count()
        with expect(Interrupted, "loading, when the progress callback raises Interrupted,", ENDS):
            self.open_plan(replace(self.make_plan(), progress=interrupt)).close()
        left = threading.active_count() - before
        assert left <= 0, broken(f"{left} threads are still running after an interrupted load", ENDS)
        self.open_stage(None).close()

    def test_benchmark_measures_the_device(self) -> None:
        """A benchmark, if there is one, gives finite speeds above zero and free memory, and leaves no thread."""
        if self.spec.benchmark is None:
            return
        before = threading.active_count()
        benchmark = self.spec.benchmark.load()(DevicePlan(dtype=self.dtype))
        speed, memory = benchmark.measure_speed(self.benchmark_s), benchmark.read_memory()
        assert benchmark.name.isprintable(), broken(f"the name of the device is {benchmark.name!r}", MEASURES)
        for name in ("flops", "bandwidth"):
            value = getattr(speed, name)
            assert 0 < value < math.inf, broken(f"{name} is {value}", MEASURES)
        for form in speed.forms:
            assert all(0 < value < math.inf for value in form), broken(f"forms has {form}", MEASURES)
        for name in ("step_s", "layer_s", "expert_layer_s"):
            value = getattr(speed, name)
            assert 0 <= value < math.inf, broken(f"{name} is {value}", MEASURES)
        fault = f"{memory.free} of {memory.total} bytes are free"
        assert 0 < memory.free <= (memory.total or memory.free), broken(fault, "The memory of a device, in bytes.")
        left = threading.active_count() - before
        assert left <= 0, broken(f"{left} threads are still running after the benchmark", MEASURES)

    def test_memory_fraction_is_kept(self) -> None:
        """Next to no memory gives fewer pages than half of it, or is an error with a hint."""
        plenty = self._count_pages(0.5)
        few, hint = 0, ""
        try:
            few = self._count_pages(1e-9)
        except ParallaxError as error:
            hint = error.hint
        assert few or hint, broken("the error for too little memory has no hint", DAMAGED)
        assert few < plenty, broken(f"a billionth of the memory gives {few} pages, and half of it {plenty}", FRACTION)

    def _count_pages(self, fraction: float) -> int:
        stage = self.open_plan(replace(self.make_plan(), memory_fraction=fraction))
        pages = sum(pool.num_pages for pool in stage.info.pools)
        stage.close()
        return pages

    @contextmanager
    def _copied(self) -> Iterator[StagePlan]:
        """Yield a plan with a copy of the model, to be damaged."""
        plan = self.make_plan()
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model"
            shutil.copytree(plan.model, copy)
            yield replace(plan, model=copy)

    def _damage(self, path: Path, keep: float | None) -> None:
        data = path.read_bytes()
        path.unlink()
        if keep is not None:
            path.write_bytes(data[: int(len(data) * keep)])
