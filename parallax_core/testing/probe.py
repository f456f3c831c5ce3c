"""Runs the probe of a backend in a fresh process, with only the imports of plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE = """
import json, sys, time
from parallax_core.api import Ref
target, frameworks = sys.argv[1], set(sys.argv[2:])
begun = time.perf_counter()
found = Ref(target).load()()
seconds = time.perf_counter() - begun
imported = sorted(frameworks & set(sys.modules))
answer = {"seconds": seconds, "imported": imported}
print(json.dumps(answer | {"ok": found.ok, "device": found.device, "reason": found.reason}))
"""
LIMIT_S = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The result of a probe."""

    seconds: float = float("inf")
    """Seconds to import and to answer."""
    imported: tuple[str, ...] = ()
    """The frameworks that the probe imported."""
    ok: bool = False
    device: str = ""
    reason: str = ""
    error: str = ""
    """The error, if there is no answer."""


def try_probe(target: str, frameworks: Sequence[str]) -> Trial:
    """Load and call the probe ``module:name`` in a fresh process with the same import path."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", SOURCE, target, *frameworks]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            timeout=LIMIT_S,
        )
        answer = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        return Trial(error=error.stderr.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return Trial(error=f"it had not answered after {LIMIT_S} s")
    return Trial(**answer | {"imported": tuple(answer["imported"])})
