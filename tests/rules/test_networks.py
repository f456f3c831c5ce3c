"""The table of networks on the page on machines at home has what the lab has measured, and hides no failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.networkpage import NETWORKS, PAGE, TRANSPORTS, describe_pair, read_report, write_page


def make_row(path: str, *, serves: bool = True) -> dict[str, Any]:
    return {"path": path, "serves": serves, **({} if serves else {"said": "no link"})}


def test_table_of_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run: python -m tests.rules.networkpage"


def test_results_have_every_pair_over_every_transport() -> None:
    found = {(row["transport"], row["first"], row["second"]) for row in read_report()["pairs"]}
    assert found == {(name, one, other) for name in TRANSPORTS for one in NETWORKS for other in NETWORKS}


def test_emulated_networks_are_proved() -> None:
    assert all(each["is_as_named"] for each in read_report()["networks"].values())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "not measured"),
        ([make_row("direct")], "direct"),
        ([make_row("relayed"), make_row("direct")], "direct or relayed"),
        ([make_row("none", serves=False)], "**no** (no link)"),
        ([make_row("direct"), make_row("none", serves=False)], "**at times**"),
    ],
)
def test_pair_says_how_it_was_linked(rows: list[dict[str, Any]], said: str) -> None:
    assert describe_pair(rows) == said
