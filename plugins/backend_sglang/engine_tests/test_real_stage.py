"""The real model in one, two and three stages on the real SGLang gives the same tokens, alone and in a batch."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from parallax_backend_sglang.arguments import Device
from parallax_backend_sglang.backend import SglangBackend
from parallax_backend_sglang.process import StageProcess
from parallax_backend_sglang.remote_stage import RemoteStage
from parallax_backend_sglang.settings import SglangSettings
from parallax_backend_sglang.stage_plan import plan_stage
from parallax_core.api import StageBatch, StageLost
from tests.support.real_stages import LAYERS, RealStages

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.usefixtures("fork_stages")
class TestSglang(RealStages):
    backend = SglangBackend
    options = {"context_length": 512, "threads": 1}  # noqa: RUF012 -- as the kits have it


def test_stage_whose_process_is_killed_is_lost(model: Path) -> None:
    plan = TestSglang.make_plan(model, 28, LAYERS)
    load = plan_stage(plan, SglangSettings(**TestSglang.options), Device(is_cpu=True))
    stage = RemoteStage(partial(StageProcess, on_cpu=True, threads=1), load, plan.progress)
    assert stage._child is not None
    os.kill(stage._child._process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(StageLost, match="ended by signal 9"):
            stage.step(StageBatch(()))
    stage.close()
