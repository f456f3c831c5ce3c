"""The page of policies lists the policies of core, with the options and defaults of the code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from parallax_cluster.offers import POLICIES as OF_CLUSTER
from parallax_core.builtin.offers import POLICIES as OF_CORE
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.engine.limits import Limits
from parallax_policies.offers import POLICIES as BESIDE

POLICIES = (*OF_CORE, *BESIDE, *OF_CLUSTER)
PAGE = (Path(__file__).parents[2] / "docs/reference/policies.md").read_text(encoding="utf-8")


def read_table(kind: PolicyKind) -> dict[str, dict[str, str]]:
    """Return the options of each policy in the table of its kind, with their defaults as text."""
    section = PAGE.partition(f"\n## {kind.capitalize()}:")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" |") for line in section.splitlines() if line.startswith("| `")]
    return {re.findall(r"`([\w-]+)`", row[0])[0]: dict(re.findall(r"`(\w+)` = ([\w.]+)", row[2])) for row in rows}


def read_options(spec: PolicySpec) -> dict[str, str]:
    """Return the options of a policy, read from its dataclass, with their defaults as text."""
    factory: Any = spec.factory.load()
    return {field.name: str(field.default) for field in dataclasses.fields(factory)}


@pytest.mark.parametrize("kind", get_args(PolicyKind))
def test_page_has_every_policy_with_its_options(kind: PolicyKind) -> None:
    assert read_table(kind) == {spec.name: read_options(spec) for spec in POLICIES if spec.kind == kind}


@pytest.mark.parametrize("kind", get_args(PolicyKind))
def test_page_marks_the_default_of_each_kind(kind: PolicyKind) -> None:
    section = PAGE.partition(f"\n## {kind.capitalize()}:")[2].partition("\n## ")[0]
    [marked] = re.findall(r"`([\w-]+)` \(default\)", section)
    assert marked == next(spec.name for spec in POLICIES if spec.kind == kind)


def test_page_states_the_longest_hold() -> None:
    assert Limits().max_hold_s == 0.5
    assert "more than half a second" in PAGE


def test_command_line_has_the_defaults_of_the_page() -> None:
    assert (ServeSettings().batching, ServeSettings().preemption) == ("work-conserving", "lowest-priority")
