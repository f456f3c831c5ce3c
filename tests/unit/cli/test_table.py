from __future__ import annotations

import pytest

from parallax_core.cli.table import align, print_table


def test_columns_are_as_wide_as_their_widest_cell_and_no_line_ends_with_spaces() -> None:
    assert list(align([("name", "size"), ("a", 1234567), ("longer", 5)])) == [
        "name    size",
        "a       1234567",
        "longer  5",
    ]


def test_rows_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        list(align([("a", "b"), ("a",)]))


@pytest.mark.parametrize(
    ("rows", "header", "printed"),
    [
        ([(1, 2)], True, "one  two\n1    2\n"),
        ([(1, 2)], False, "1  2\n"),
        ([], True, "none\n"),
        ([], False, "none\n"),
    ],
)
def test_table_is_printed_under_its_titles_if_there_is_anything(
    rows: list[tuple[int, int]], header: bool, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("one", "two"), rows, header=header, empty="none")
    assert capsys.readouterr().out == printed
