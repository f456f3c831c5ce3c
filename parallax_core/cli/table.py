"""Prints tables with aligned columns, which pipes can process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True, empty: str = ""
) -> None:
    """Print ``rows`` under ``titles``, or ``empty`` without rows."""
    if not rows:
        print(empty)
        return
    for line in align([titles, *rows] if header else rows):
        print(line)


def align(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield a line for each row, with aligned columns; all rows have the same length."""
    widths = [max(map(len, map(str, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
