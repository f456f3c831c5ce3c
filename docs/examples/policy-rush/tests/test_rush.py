"""The policy held to the contract by Parallax's own kit, and to what it says of itself."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from parallax_core.testing.command import CommandConformance
from parallax_core.testing.policy import BatchingConformance
from parallax_policy_rush.command import RushSettings, app, list_steps
from parallax_policy_rush.policy import Rush


class TestRush(BatchingConformance):
    policy = Rush(gap_s=0.01, most_s=0.05)
    bound_s = 0.05


class TestCommand(CommandConformance):
    place = "parallax_policy_rush.command:app"
    sections = (RushSettings,)


def test_command_shows_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_RUSH__GAP", "5")
    ran = CliRunner().invoke(app, ["--arrival", "0", "--arrival", "1", "--arrival", "50"])
    assert ran.stdout.splitlines() == ["BEGINS AT  REQUESTS", "10 ms      2", "55 ms      1"]


def test_step_waits_while_requests_keep_coming() -> None:
    [(begun, size)] = list_steps([float(number) for number in range(12)], Rush(gap_s=0.002, most_s=1.0))
    assert size == 12
    assert begun == pytest.approx(0.024)


def test_request_that_comes_alone_is_hardly_held_up() -> None:
    assert list_steps([0.0, 100.0, 200.0], Rush(gap_s=0.002))[0] == (0.002, 1)


def test_rush_without_end_is_cut_off() -> None:
    begun, size = list_steps([0.1 * number for number in range(1000)], Rush(gap_s=0.002, most_s=0.03))[0]
    assert begun == pytest.approx(0.03)
    assert 299 <= size <= 301


@pytest.mark.parametrize("options", [{"gap_s": -1.0}, {"gap_s": 2.0, "most_s": 1.0}, {"most_s": float("inf")}])
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="gap_s"):
        Rush(**options)
