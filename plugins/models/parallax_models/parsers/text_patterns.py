"""Regular expressions for the string formats of JSON Schema; they match no string outside the format."""

from __future__ import annotations

from collections.abc import Mapping

DATE = (
    r"[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
GROUP = r"[0-9a-fA-F]{1,4}"
LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
HOST = rf"{LABEL}(\.{LABEL}){{0,8}}"
NAME = r"[a-zA-Z0-9_+-]{1,32}"
URI_PART = r"([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9a-fA-F]{2})*"
FORMATS: Mapping[str, str] = {
    "date": DATE,
    "date-time": f"{DATE}T{TIME}",
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}[HMS])?|[0-9]{1,4}[YM]|T[0-9]{1,4}[HMS])",
    "email": rf"{NAME}(\.{NAME}){{0,3}}@{HOST}",
    "hostname": HOST,
    "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
    "ipv6": rf"({GROUP}:){{7}}{GROUP}|({GROUP}:){{1,6}}:{GROUP}|::{GROUP}|::",
    "time": TIME,
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*:(//{HOST}(:[0-9]{{1,5}})?(/{URI_PART})?|{URI_PART})(\?{URI_PART})?(#{URI_PART})?",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""By format. Others are annotations."""


def match_whole(pattern: str) -> str | None:
    """Return a regular expression that matches whole texts for one that may match a part; None: other anchors."""
    begin, end = pattern.startswith("^"), pattern.endswith("$") and not _is_escaped(pattern, len(pattern) - 1)
    inner = pattern[begin : len(pattern) - end]
    marks = _list_marks(inner)
    if marks & {"^", "$"} or ((begin or end) and "|" in marks):
        return None
    return f"{'' if begin else '(?s:.*)'}(?:{inner}){'' if end else '(?s:.*)'}"


def _is_escaped(pattern: str, place: int) -> bool:
    before = pattern[:place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _list_marks(pattern: str) -> set[str]:
    """Return the anchors anywhere in a regular expression, and ``|`` if its alternatives are not in a group."""
    found, depth, in_class, place = set(), 0, False, 0
    while place < len(pattern):
        character = pattern[place]
        place += 1 + (character == "\\")
        if character in "[]":
            in_class = character == "["
        elif not in_class and character != "\\":
            depth += (character == "(") - (character == ")")
            found |= {character} if character in "^$" or (character == "|" and not depth) else set()
    return found
