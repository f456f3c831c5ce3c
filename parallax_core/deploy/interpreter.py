"""Checks Python interpreters of other environments, for backends that cannot be installed here."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.models.backends import probe
from parallax_core.plugins.host import PluginHost
from parallax_core.wire.codec import WIRE_VERSION

PROBE = """
from importlib.metadata import version
found = version("parallax-core")
from parallax_core.wire.codec import WIRE_VERSION
print(found, WIRE_VERSION)
"""
"""Prints the version of parallax-core and that of its messages."""
PROBE_S = 30.0
"""Seconds an interpreter may take to show whether it has Parallax."""


def read_pythons(settings: ServeSettings, backends: Sequence[str]) -> dict[str, str]:
    """Return the interpreters that ``--python`` names, by backend.

    Raises:
        UsageError: if one cannot run Parallax, or no stage would use it.
    """
    if settings.python and settings.listen is not None:
        message = "--python is for workers that this command starts, and with --listen it starts none"
        raise UsageError(
            message, "leave it out; on other machines, run `parallax worker` in the environment of its backend"
        )
    for name in (found := parse_pythons(settings.python)):
        if name not in backends:
            message = f"--python names the backend {name!r}, and no stage uses it"
            raise UsageError(message, f"give it to a stage: --backend {name}")
    return found


def find_own_pythons(settings: ServeSettings, plugins: PluginHost, backends: Sequence[str]) -> dict[str, str]:
    """Return the interpreters that plugins name for backends that cannot run here, by backend.

    ``--python`` comes before them.

    Raises:
        UsageError: if one cannot run workers of this Parallax, or its plugin says that it cannot run the backend.
    """
    found: dict[str, str] = {}
    named = {text.partition("=")[0] for text in settings.python}
    for offer in plugins.backends().offers if settings.listen is None else ():
        name = offer.spec.name
        if name not in backends or name in named:
            continue
        if (python := plugins.find_python(offer.spec)) and not probe(offer).ok:
            if python.fault:
                raise UsageError(python.fault, python.remedy)
            found[name] = python.path
            check_python(python.path, name)
    return found


def parse_pythons(texts: Sequence[str]) -> dict[str, str]:
    """Parse entries ``BACKEND=PYTHON`` into the interpreter of each backend.

    Raises:
        UsageError: if an entry is not of that form, or its interpreter cannot run Parallax.
    """
    found = {}
    for text in texts:
        name, mark, path = text.partition("=")
        if not (name and mark and path):
            raise UsageError(f"{text!r} is not of the form BACKEND=PYTHON", "write torch=/path/to/bin/python")
        found[name] = str(Path(path).expanduser())
        check_python(found[name], name)
    return found


def check_python(path: str, backend: str) -> None:
    """Check that an interpreter has Parallax; the worker itself reports if the backend is missing.

    Raises:
        UsageError: if it cannot run a worker for this Parallax; it says why.
    """
    hint = f"name a Python that has it, or install it there: {path} -m pip install parallax-core=={_read_version()}"
    command = [path, "-P", "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it does not answer within {PROBE_S:g} s"
        raise UsageError(f"the backend {backend!r} cannot run with {path}: {reason}", hint) from error
    if done.returncode:
        last = (done.stderr.strip() or f"it ends with exit code {done.returncode}").splitlines()[-1]
        raise UsageError(f"the backend {backend!r} cannot run with {path}: {last}", hint)
    version, _, wire = done.stdout.strip().rpartition(" ")
    if wire != str(WIRE_VERSION):
        message = (
            f"the backend {backend!r} cannot run with {path}: it has parallax-core {version} with wire "
            f"version {wire or 'unknown'}, and this one ({_read_version()}) has version {WIRE_VERSION}"
        )
        raise UsageError(message, hint)


def _read_version() -> str:
    return metadata.version("parallax-core")
