from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from parallax_core.api import BackendFailed, Draw, Drop, Open, Row, SeqId, SequenceSpec, StageBatch, StageResult
from parallax_core.base.errors import StageLost
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import GREEDY, Toy

ONE = SeqId(1)
OPEN = Open(ONE, SequenceSpec(prompt_length=1, sampling=GREEDY))


def make_stage(*faults: Fault) -> FaultStage:
    stage = FaultStage(Toy().open(), *faults)
    stage.edit([OPEN])
    return stage


def step(stage: FaultStage, start: int) -> StageResult:
    return stage.step(StageBatch((Row(ONE, start, (7,), (Draw(0),)),))).wait()


def test_failing_edit_changes_nothing() -> None:
    stage = make_stage(Fault("edit", 1))
    with pytest.raises(BackendFailed, match="on purpose"):
        stage.edit([Drop(ONE)])
    assert step(stage, 0) == step(make_stage(), 0)


def test_failing_step_changes_nothing() -> None:
    healthy, error = make_stage(), ValueError("so it was wished")
    stage = make_stage(Fault("step", 1, error))
    assert step(stage, 0) == step(healthy, 0)
    with pytest.raises(ValueError, match="so it was wished"):
        step(stage, 1)
    assert step(stage, 1) == step(healthy, 1)


def test_waiting_fault_comes_after_the_step() -> None:
    stage = make_stage(Fault("wait"))
    with pytest.raises(BackendFailed, match="on purpose"):
        step(stage, 0)
    assert step(stage, 1).answers


def test_result_is_wrong_where_it_should_be() -> None:
    healthy, stage = make_stage(), make_stage(Fault("free", 1), Fault("answers", 2))
    results = [(step(stage, start), step(healthy, start)) for start in range(4)]
    assert [found.free != right.free for found, right in results] == [False, True, False, False]
    assert [len(found.answers) for found, _ in results] == [1, 1, 0, 1]


def test_dead_stage_stays_dead() -> None:
    stage = make_stage(Fault("die", 1))
    step(stage, 0)
    for _ in range(2):
        with pytest.raises(StageLost):
            step(stage, 1)
    with pytest.raises(StageLost):
        stage.edit([])
    stage.close()


def test_hanging_stage_goes_on_when_it_is_released() -> None:
    results: list[StageResult] = []

    def work() -> None:
        stage.edit([OPEN])
        results.append(step(stage, 0))

    stage = FaultStage(Toy().open(), Fault("hang"))
    thread = threading.Thread(target=work)
    thread.start()
    assert stage.hanging.wait(10)
    assert results == []
    stage.release()
    thread.join(10)
    assert len(results) == 1


def test_exit_ends_the_process() -> None:
    source = (
        "from parallax_core.api import StageBatch\n"
        "from parallax_core.testing.fault import Fault, FaultStage\n"
        "from parallax_core.testing.toy import Toy\n"
        "FaultStage(Toy().open(), Fault('exit')).step(StageBatch(()))\n"
        "print('still here')\n"
    )
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
