"""Python interpreters of other environments, which run the stages of backends that cannot be installed here."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings

PROBE_S = 30.0
"""How long an interpreter may take to say whether it has Parallax."""


def read_pythons(settings: ServeSettings, backends: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each of ``backends`` that has one of its own.

    Raises:
        UsageError: if one cannot run Parallax, or would not be used.
    """
    if settings.python and settings.listen is not None:
        message = "--python is for workers that are started here, and with --listen none are"
        raise UsageError(message, "leave it out; elsewhere, start `parallax worker` from the environment it is to have")
    for name in (found := parse_pythons(settings.python)):
        if name not in backends:
            message = f"--python names the backend {name!r}, and no stage runs that"
            raise UsageError(message, f"name it among the stages': --backend {name}")
    return found


def parse_pythons(texts: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each backend that has one of its own, from ``BACKEND=PYTHON``.

    Raises:
        UsageError: if one is not written like that, or cannot run Parallax.
    """
    found = {}
    for text in texts:
        name, mark, path = text.partition("=")
        if not (name and mark and path):
            raise UsageError(f"{text!r} names no interpreter for a backend", "write torch=/path/to/bin/python")
        found[name] = str(Path(path).expanduser())
        check_python(found[name], name)
    return found


def check_python(path: str, backend: str) -> None:
    """Check that an interpreter has Parallax; whether it has the backend, the worker itself will say.

    Raises:
        UsageError: saying why it cannot run a worker.
    """
    hint = f"name a Python that has it, or install it there: {path} -m pip install parallax-core"
    command = [path, "-P", "-c", "import importlib.metadata as each; each.version('parallax-core')"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it does not answer within {PROBE_S:g} s"
        raise UsageError(f"the backend {backend!r} cannot run with {path}: {reason}", hint) from error
    if done.returncode:
        last = (done.stderr.strip() or f"it ends with exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"the backend {backend!r} cannot run with {path}: {last}", hint)
