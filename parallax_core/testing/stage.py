"""The kit for stages: the whole of `parallax_core.contracts.stage`, as seen from outside.

Its author says how to open a stage of a small model, and the kit does the rest::

    from parallax_core.testing.stage import StageConformance


    class TestMine(StageConformance):
        num_layers = 4
        exact = False

        def open_stage(self, layers):
            return MyBackend().open_stage(StagePlan(model=FOLDER, layers=layers, dtype="float32"))

Every test opens stages of its own and needs nothing of pytest but that it calls its methods.
"""

from __future__ import annotations

from parallax_core.testing.checks.batch import BatchChecks
from parallax_core.testing.checks.draw import DrawChecks
from parallax_core.testing.checks.error import ErrorChecks
from parallax_core.testing.checks.failure import FailureChecks
from parallax_core.testing.checks.flight import FlightChecks
from parallax_core.testing.checks.fork import ForkChecks
from parallax_core.testing.checks.hidden import HiddenChecks
from parallax_core.testing.checks.life import LifeChecks
from parallax_core.testing.checks.mask import MaskChecks
from parallax_core.testing.checks.penalty import PenaltyChecks
from parallax_core.testing.checks.pool import PoolChecks
from parallax_core.testing.checks.score import ScoreChecks
from parallax_core.testing.checks.split import SplitChecks
from parallax_core.testing.checks.truncate import TruncateChecks
from parallax_core.testing.checks.window import WindowChecks


class StageConformance(
    LifeChecks,
    BatchChecks,
    SplitChecks,
    ForkChecks,
    TruncateChecks,
    PoolChecks,
    WindowChecks,
    FlightChecks,
    ErrorChecks,
    FailureChecks,
    DrawChecks,
    MaskChecks,
    PenaltyChecks,
    ScoreChecks,
    HiddenChecks,
):
    """All tests of a stage; see `parallax_core.testing.checks.subject.StageSubject` for what an author gives."""
