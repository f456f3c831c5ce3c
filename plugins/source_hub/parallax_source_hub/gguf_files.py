"""Chooses the GGUF files of a quantisation in a repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from parallax_core.api import UnknownName
from parallax_source_hub.partial_file import RemoteFile

NAME = re.compile(r"(?:(?!\.)[^/\\:]+/)?(?!\.)[^/\\:]+\.gguf")
"""Matches a GGUF file in the root of a repository, or one folder below it."""
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
KIND = re.compile(
    r"(?:^|[-._])((?:UD-|i1-)?(?:I?Q[1-8](?:_[0-9A-Z]+)*|TQ[12]_0|BF16|FP?16|F32|MXFP4(?:_MOE)?|NVFP4))", re.IGNORECASE
)
"""Matches the quantisation at the end of a file's name, such as ``Q4_K_M``."""
OTHERS = ("mmproj", "imatrix")
"""The beginnings of names of GGUF files that hold something else than a language model."""
MOST_LISTED = 40


def is_gguf(name: str) -> bool:
    """Return whether a file of a repository may be a model, or a part of one."""
    return NAME.fullmatch(name) is not None and not PurePosixPath(name).name.lower().startswith(OTHERS)


def list_kinds(listing: Sequence[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Return the models of a repository by quantisation, each with its files in their order.

    Models that have the same one, or whose names end with none, are listed by the names of their files.
    """
    models: dict[str, list[RemoteFile]] = {}
    for file in sorted((file for file in listing if is_gguf(file.name)), key=lambda file: file.name):
        stem = PurePosixPath(file.name).with_suffix("").as_posix()
        found = PART.fullmatch(stem)
        models.setdefault(found[1] if found else stem, []).append(file)
    named: dict[str, list[str]] = {}
    for stem in models:
        named.setdefault(name_kind(stem), []).append(stem)
    return {
        kind if len(stems) == 1 else PurePosixPath(stem).name: models[stem]
        for kind, stems in named.items()
        for stem in stems
    }


def name_kind(stem: str) -> str:
    """Return the quantisation of a file with that name, without its ending; the name if it says none."""
    name = PurePosixPath(stem).name
    found = next((each for each in KIND.finditer(name) if each.end() == len(name)), None)
    return found[1].upper().replace("I1-", "i1-") if found else name


def choose_gguf(name: str, kind: str, listing: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Return the files of the model in ``kind``, whatever the case of its letters.

    Raises:
        UnknownName: if there is none; the hint lists those that exist.
    """
    kinds = list_kinds(listing)
    found = next((files for each, files in kinds.items() if each.lower() == kind.lower()), None)
    if found is None:
        raise UnknownName(f"{name} has no GGUF file in {kind!r}", hint_at_kinds(name, kinds))
    return found


def hint_at_kinds(name: str, kinds: Sequence[str] | dict[str, list[RemoteFile]]) -> str:
    """Return a hint that lists quantisations."""
    if not kinds:
        return "its repository has no GGUF files; write its name without the part after the colon"
    listed = sorted(kinds)
    rest = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    there = f"it has GGUF files in {', '.join(listed[:MOST_LISTED])}{rest}"
    return f"{there}; write one of them after a colon: {name}:{listed[0]}"
