"""Draws the distributions of the times of a run in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parallax_bench.request import BenchResult

WIDTH = 48
"""Columns of a chart."""
BARS = " ▁▂▃▄▅▆▇█"
PLAIN_BARS = " .:-=+*#@"
"""For outputs whose encoding has no others."""


def draw_charts(results: Sequence[BenchResult], encoding: str) -> Iterator[str]:
    """Yield a line for each kind of time that the results have: its least and largest value, and how many are where."""
    bars = BARS if _can_show(encoding) else PLAIN_BARS
    good = [each for each in results if not each.error]
    times: dict[str, list[float | None]] = {
        "ttft": [each.ttft for each in good],
        "itl": [gap for each in good for gap in each.gaps],
        "e2e": [each.e2e for each in good],
    }
    for name, found in times.items():
        values = [1000 * value for value in found if value is not None]
        if values:
            yield f"{name:5} {min(values):9.1f} {draw_bars(values, bars)} {max(values):.1f} ms"


def draw_bars(values: Sequence[float], bars: str = BARS, width: int = WIDTH) -> str:
    """Return a histogram of one line: ``width`` columns of equal size from the least value to the largest.

    The highest has the last of ``bars``; a column with a value has never the first.
    """
    low, high = min(values), max(values)
    counts = [0] * width
    for value in values:
        counts[min(width - 1, int((value - low) / (high - low) * width)) if high > low else 0] += 1
    most = max(counts)
    return "".join(bars[-(-count * (len(bars) - 1) // most)] for count in counts)


def _can_show(encoding: str) -> bool:
    try:
        BARS.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True
