"""Checks Python interpreters of other environments, for backends that cannot be installed here."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.engine_spec import EngineSpec
from parallax_core.deploy.engine_environment import EngineEnvironment, find_environment, is_supported
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


def find_engine_pythons(settings: ServeSettings, plugins: PluginHost, backends: Sequence[str]) -> dict[str, str]:
    """Return the interpreters of the environments that ``parallax engines install`` made, by backend.

    The engine that is installed beside Parallax comes first, if it can run here; ``--python`` comes before both.

    Raises:
        UsageError: if an environment cannot run this Parallax, or has a release of its engine that is not supported.
    """
    found: dict[str, str] = {}
    named = {text.partition("=")[0] for text in settings.python}
    for offer in plugins.backends().offers if settings.listen is None else ():
        name = offer.spec.name
        if offer.spec.engine is None or name not in backends or name in named or probe(offer).ok:
            continue
        if environment := find_environment(name):
            found[name] = str(environment.python)
            check_python(found[name], name)
            check_release(environment, offer.load(offer.spec.engine))
    return found


def check_release(environment: EngineEnvironment, spec: EngineSpec) -> None:
    """Check the engine's release in its environment; a missing engine is left for the worker to report.

    Raises:
        UsageError: if it is not supported.
    """
    version, name = environment.read_version(spec.distributions), environment.note.backend
    if version and not is_supported(version, spec.supported):
        message = f"{environment.folder} has {name} {version}, and the backend {name!r} supports {spec.supported}"
        raise UsageError(message, f"make the environment anew: parallax engines install {name}")


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
