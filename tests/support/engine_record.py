"""Whether the tests of an engine's release that CI runs have passed on these sources.

The environment of an engine takes 4 GB, and its tests minutes, so they run where what they test was touched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path("tests/engines.json")
"""The digest of the sources on which the tests of each release passed last."""
SHARED = (
    "parallax_core/api/__init__.py",
    "parallax_core/backendkit",
    "parallax_core/contracts",
    "parallax_core/hookspecs.py",
    "parallax_core/node/whole_model",
    "parallax_core/node/worker",
    "parallax_core/testing",
    "parallax_core/wire",
    "plugins/sampling_torch/parallax_sampling_torch",
    "tests/support/real_server.py",
    "tests/support/real_stages.py",
)
"""What the plugins of engines stand on: their contracts and kits, the worker that runs them, and the wire."""


def list_sources(root: Path, release: str) -> Iterator[Path]:
    """Yield the files that the tests of a release of an engine test, such as ``vllm-0.32.0``."""
    engine = release.partition("-")[0]
    left_out = root / f"plugins/backend_{engine}/tests"
    for name in (*SHARED, f"plugins/backend_{engine}"):
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (each for each in found if each.suffix in {".py", ".toml"} and left_out not in each.parents)


def digest_sources(root: Path, release: str) -> str:
    """Return the digest of the names and contents of the sources, and of the release."""
    digest = hashlib.sha256(release.encode())
    for path in list_sources(root, release):
        digest.update(f"\0{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def has_passed(root: Path, release: str) -> bool:
    """Return whether the record has these sources."""
    return _read(root).get(release) == digest_sources(root, release)


def record(root: Path, release: str) -> None:
    """Note that the tests passed on these sources."""
    noted = _read(root) | {release: digest_sources(root, release)}
    (root / RECORD).write_text(json.dumps(noted, indent=1, sort_keys=True) + "\n")


def _read(root: Path) -> dict[str, str]:
    path = root / RECORD
    return dict(json.loads(path.read_text())) if path.exists() else {}


def main() -> None:
    """Exit with 0 if the tests of a release passed on these sources, and 1 if not; or note that they did."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("release")
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    if asked.record:
        record(ROOT, asked.release)
        print(f"the tests of {asked.release} passed: commit {RECORD}")
    elif has_passed(ROOT, asked.release):
        print(f"the tests of {asked.release} passed on these sources: see {RECORD}")
    else:
        sys.exit(1)


if __name__ == "__main__":
    main()
