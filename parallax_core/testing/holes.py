"""Makes partially fetched model folders from complete ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from parallax_core.checkpoint.partial import FetchedRange, name_journal
from parallax_core.checkpoint.reader import find_locations


def punch_holes(folder: Path, is_kept: Callable[[str], bool]) -> None:
    """Turn a whole model folder into one of which only some tensors were fetched; the others read as zeros.

    Args:
        folder: of the model; its weights are written anew.
        is_kept: told the name of each tensor.
    """
    for path in folder.glob("*.safetensors"):
        data, locations = path.read_bytes(), find_locations(path)
        ranges = [(0, min(location.start for location in locations))]
        ranges += [(location.start, location.stop) for location in locations if is_kept(location.name)]
        lines = [FetchedRange(*each, hashlib.sha256(data[slice(*each)]).hexdigest()) for each in ranges]
        name_journal(path).write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        path.unlink()
        with path.open("wb") as file:
            file.truncate(len(data))
            for start, stop in ranges:
                file.seek(start)
                file.write(data[start:stop])
