"""Makes the environment of an engine: a virtual environment with the engine, Parallax and the backend."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import filelock
import msgspec

from parallax_core.api import EngineBuild, EngineSpec, Machine, ParallaxError, PipStep, Progress, silent
from parallax_core.api.cli import UsageError, normalize
from parallax_engines.environment import (
    NOTE,
    EngineEnvironment,
    EngineNote,
    engines_folder,
    find_distribution,
    find_python,
)
from parallax_engines.local_source import CORE, list_sources

MACHINE = Machine()
NAME = re.compile(r"^[\w.-]*")
"""The name at the beginning of a requirement."""
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
KEPT_LINES = 30
"""The last lines of pip's output that are searched for its error."""
CHECK_S = 300.0
"""Seconds that the first import of an engine may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInstall:
    """What to install, and where."""

    backend: str
    spec: EngineSpec
    distribution: str
    """The distribution of the backend's plugin."""
    build: EngineBuild
    release: str = ""
    """The release of the engine, such as ``0.31.0``; empty: the newest supported one."""
    python: str = sys.executable
    """The interpreter from which the environment is made."""
    progress: Progress = silent

    @property
    def folder(self) -> Path:
        """The folder of the environment."""
        return engines_folder() / self.backend

    def run(self) -> EngineEnvironment:
        """Make the environment, in place of the one that is there; what is incomplete is removed.

        Raises:
            UsageError: if the engine has no such build or release.
            ParallaxError: if it cannot be installed or imported.
        """
        if self.build not in self.spec.builds:
            message = f"the engine of {self.backend!r} has no build for {self.build}"
            raise UsageError(message, f"it has: {', '.join(self.spec.builds)}")
        for step in self.spec.builds[self.build]:
            if step.releases and self.release not in {"", *step.releases}:
                message = f"release {self.release} of the engine of {self.backend!r} was not tried on {self.build}"
                raise UsageError(message, f"choose one of: {', '.join(step.releases)}")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with filelock.FileLock(self.folder.with_suffix(".lock"), timeout=0):
                return self._make()
        except filelock.Timeout as error:
            message = f"another process is making {self.folder}"
            raise ParallaxError(message, "wait until it has finished") from error

    def _make(self) -> EngineEnvironment:
        shutil.rmtree(self.folder, ignore_errors=True)
        note = EngineNote(backend=self.backend, build=self.build, core=metadata.version(CORE))
        try:
            self._make_venv()
            count = len(self.spec.builds[self.build]) + 1
            for number, command in enumerate(self.list_commands(), 1):
                self._run_pip(f"installing {self.backend}, step {number} of {count}", command)
            self._check()
            (self.folder / NOTE).write_bytes(msgspec.json.encode(note))
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return EngineEnvironment(self.folder, note)

    def _make_venv(self) -> None:
        command = [self.python, "-m", "venv", str(self.folder)]
        hint = "name another Python: --python /path/to/python3"
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ParallaxError(f"{self.python} cannot be started: {error.strerror}", hint) from error
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["venv failed"]
            raise ParallaxError(f"{self.python} cannot make an environment in {self.folder}: {lines[-1]}", hint)

    def list_commands(self) -> Iterator[list[str]]:
        """Yield the arguments of each pip call; later calls may depend on what earlier ones installed."""
        for step in self.spec.builds[self.build]:
            yield self._describe_step(step)
        yield ["install", *list_sources(self.distribution)]

    def _describe_step(self, step: PipStep) -> list[str]:
        if step.uninstall:
            return ["uninstall", "--yes", *step.options, *step.uninstall]
        only = self.release or next(reversed(step.releases), "")
        release = f"=={only}" if step.releases else self.spec.supported + (f",=={only}" if only else "")
        required = read_requirements(self.folder, step.as_required_by) if step.as_required_by else {}
        wanted = (required.get(normalize(each), each) for each in step.install)
        return ["install", *step.options, *(each.replace("{release}", release) for each in wanted)]

    def _run_pip(self, task: str, arguments: Sequence[str]) -> None:
        """Run pip; report the number of packages it has found so far.

        Raises:
            ParallaxError: if it fails, with its error.
        """
        command = [str(find_python(self.folder)), *PIP, *arguments]
        lines, count = deque[str](maxlen=KEPT_LINES), 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None, "it is a pipe"
            try:
                for line in process.stdout:
                    lines.append(line.strip())
                    count += line.startswith("Collecting ")
                    self.progress(f"{task}: packages", count, None, "items")
            except BaseException:
                process.kill()
                raise
        self.progress(f"{task}: packages", count, count, "items")
        if process.returncode:
            message = f"pip could not install the engine of {self.backend!r}: {find_pip_error(lines)}"
            hint = "correct that and run the command again; what was downloaded is cached"
            raise ParallaxError(message, hint)

    def _check(self) -> None:
        """Import the engine, so that an environment that cannot be used is not kept.

        Raises:
            ParallaxError: if that fails.
        """
        module, importing = self.spec.module, self.spec.importing
        source, _, name = importing.target.partition(":") if importing else (module, "", "")
        code = f"from {source} import {name}; {name}()" if importing else f"import {module}"
        command = [str(find_python(self.folder)), "-P", "-c", code]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ParallaxError(f"importing {module} took longer than {CHECK_S:g} s") from error
        if done.returncode:
            last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            message = f"{module} is installed, but cannot be imported: {last}"
            builds = ", ".join(f"--{name}" for name in self.spec.builds)
            raise ParallaxError(message, f"try another build: {builds}")


def remove_environment(backend: str) -> int:
    """Remove the environment of a backend's engine, complete or not, and return the bytes that are freed.

    Raises:
        ParallaxError: if there is none.
    """
    folder = engines_folder() / backend
    if not folder.is_dir():
        message = f"there is no environment for the engine of {backend!r} in {folder.parent}"
        raise ParallaxError(message, "`parallax engines list` shows the engines")
    freed = sum(path.lstat().st_size for path in folder.rglob("*"))
    shutil.rmtree(folder)
    return freed


def choose_build(spec: EngineSpec, machine: Machine = MACHINE) -> EngineBuild:
    """Return the build for this machine: CUDA if it has an NVIDIA GPU and the engine a build for it."""
    return "cuda" if machine.has_nvidia_driver() and "cuda" in spec.builds else "cpu"


def read_requirements(folder: Path, distribution: str) -> dict[str, str]:
    """Return what a distribution in an environment requires, without its extras, by normalized name."""
    found = find_distribution(folder, distribution)
    lines = (found.requires if found else None) or []
    return {normalize(NAME.findall(each)[0]): each for each in lines if "extra ==" not in each}


def find_pip_error(lines: Sequence[str]) -> str:
    """Return the last error in pip's output, else its last line."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or [line for line in lines if line] or ["it ended without a message"])[-1]
