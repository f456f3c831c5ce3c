"""Aligned columns, plain enough for a pipe."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True, empty: str = ""
) -> None:
    """Print ``rows`` under ``titles``, or ``empty`` when there are none."""
    if not rows:
        print(empty)
        return
    lines = [titles, *rows] if header else list(rows)
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(titles))]
    for line in lines:
        cells = (str(cell).ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
