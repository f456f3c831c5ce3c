"""Text of others, made harmless for a terminal and a log."""

from __future__ import annotations


def make_printable(text: str, most: int) -> str:
    """Return ``text`` in one line of at most ``most`` characters, with ? for those that a terminal would obey."""
    line = " ".join(text[: 4 * most].split())[:most]
    return line if line.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in line)
