"""Makes untrusted text safe to print to a terminal or log."""

from __future__ import annotations


def make_printable(text: str, most: int) -> str:
    """Return ``text`` in one line of at most ``most`` characters, with ? in place of control characters."""
    line = " ".join(text[: 4 * most].split())[:most]
    return line if line.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in line)
