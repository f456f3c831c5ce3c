"""The manifest of a model folder, written last: a folder without it is incomplete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "parallax.json"

CONVERTER = 3
"""Raised when the same GGUF file would become another folder; models of an older converter are made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Where a model came from, and its files."""

    source: str
    """``pypi:NAME==VERSION`` or ``gguf:PATH``."""
    sha256: str
    """The SHA-256 of the wheel; empty for a file without a wheel."""
    member: str
    """The name of the GGUF file in the wheel; for a file without a wheel, its size and modification time."""
    converter: int
    files: dict[str, int]
    """Sizes in bytes of all files but the manifest."""


def write_manifest(folder: Path, source: str, sha256: str, member: str) -> None:
    """Declare ``folder`` complete."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = Manifest(source=source, sha256=sha256, member=member, converter=CONVERTER, files=files)
    (folder / FILE).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a complete model; None if ``folder`` has no manifest, or its files do not match it."""
    try:
        manifest = Manifest(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        sizes = {name: (folder / name).stat().st_size for name in manifest.files}
    except (OSError, TypeError, ValueError):
        return None
    return manifest if sizes == manifest.files else None
