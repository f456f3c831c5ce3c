"""Downloads a wheel with the user's own pip, and turns its failures into clear errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from parallax_core.api import ParallaxError, Progress, UnknownName, Unsupported
from parallax_source_pypi.name import PackageRequirement

PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*", re.ASCII)
END_TIMEOUT_S = 0.5
NO_PIP = "No module named pip"
OLD_PIP = "invalid choice: 'raw'"
WRONG_HASH = "DO NOT MATCH THE HASHES"
DISK_FULL = ("No space left on device", "[Errno 28]")
UNREACHED = re.compile(r"Could not fetch URL \S+: (?!404 )(.*) - skipping|after connection broken by '(.*)'")
NO_MATCH = "No matching distribution found"
VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
NO_WHEEL = ("No sources permitted", "none of the wheel's tags", "requires a different Python")


def download_wheel(wanted: PackageRequirement, folder: Path, progress: Progress) -> Path:
    """Download one wheel into ``folder``, which must be empty, and return its path. Nothing is installed or run.

    pip downloads it with the user's own configuration: indexes, proxies, certificates, credentials.

    Raises:
        UnknownName: if the package or version does not exist.
        ParallaxError: if it has no wheel or another hash, or pip, the network or the disk fail.
    """
    task = f"download {wanted.project}"
    progress(task, 0, None, "bytes")
    log, wheels = folder / "pip.log", folder / "wheels"
    output, is_done = run_pip(pip_command(wanted, folder), scratch_environment(folder), progress, task)
    found = list(wheels.glob("*.whl"))
    if not is_done or len(found) != 1:
        raise explain_failure(wanted, output + read_log(log))
    size = found[0].stat().st_size
    progress(task, size, size, "bytes")
    return found[0]


def pip_command(wanted: PackageRequirement, folder: Path) -> list[str]:
    """Return the command that downloads into ``folder / "wheels"`` and logs to ``folder / "pip.log"``."""
    requirements = folder / "requirements.txt"
    requirements.write_text(wanted.requirement + "\n", encoding="utf-8")
    # -P: a folder named pip in the working directory is not run.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=raw", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    command += [f"--log={folder / 'pip.log'}", f"--dest={folder / 'wheels'}", f"--requirement={requirements}"]
    return [*command, "--require-hashes"] if wanted.sha256 else command


def scratch_environment(folder: Path) -> Mapping[str, str]:
    """Return this process's environment with pip's temporary files in ``folder``, so that they are deleted with it."""
    scratch = folder / "scratch"
    scratch.mkdir()
    return {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}


def run_pip(command: list[str], environment: Mapping[str, str], progress: Progress, task: str) -> tuple[str, bool]:
    """Run pip and report its progress; return its other output, and whether it succeeded."""
    kept = []
    with start_process(command, environment) as process:
        for line in process.stdout or ():
            match = PROGRESS.fullmatch(line)
            if match:
                progress(task, int(match[1]), int(match[2]), "bytes")
            else:
                kept.append(line)
    return "".join(kept), process.returncode == 0


@contextmanager
def start_process(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is read as text; it has ended when the block is left, even by an error."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    try:
        yield process
        process.wait()
    finally:
        end_process(process)


def end_process(process: subprocess.Popen[str]) -> None:
    """End a process; kill it after about half a second if needed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()


def read_log(log: Path) -> str:
    """Return pip's log, which has more detail than its output; empty if pip wrote none."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def explain_failure(wanted: PackageRequirement, output: str) -> ParallaxError:
    """Return the error for a download that failed, from ``output``, the output of pip."""
    name = wanted.stored_name

    def says(*texts: str) -> bool:
        return any(text in output for text in texts)

    if says(NO_PIP):
        return ParallaxError(f"{sys.executable} has no pip, which downloads {name}", "run `python -m ensurepip`")
    if says(OLD_PIP):
        return ParallaxError(f"pip is too old to download {name}", "run `python -m pip install 'pip>=24.1'`")
    if says(WRONG_HASH):
        message = f"the wheel of {name} does not have the SHA-256 {wanted.sha256}, and was deleted"
        return ParallaxError(message, "check the hash; if it is right, your index or mirror serves another file")
    if says(*DISK_FULL):
        return ParallaxError(f"the disk is full, so {name} cannot be downloaded", "free space, or move PARALLAX_HOME")
    unreached = UNREACHED.search(output)
    if unreached:
        message = f"the package index cannot be reached to download {name}: {(unreached[1] or unreached[2])[:200]}"
        return ParallaxError(message, "check the network, and pip's index and proxy with `python -m pip config list`")
    return explain_absence(name, output)


def explain_absence(name: str, output: str) -> ParallaxError:
    """Return the error for a package that pip looked for and did not find."""
    if NO_MATCH not in output:
        errors = re.findall(r"ERROR: (.*)", output) or ["it does not say why"]
        message = f"pip could not download {name}: {errors[-1]}"
        return ParallaxError(message, f"see what `python -m pip download --no-deps {name}` says")
    versions = VERSIONS.search(output)
    if versions and versions[1] != "none":
        return UnknownName(f"there is no {name}", f"there are the versions {versions[1]}")
    if any(text in output for text in NO_WHEEL):
        message = f"{name} has no wheel for this machine, perhaps only its source, which would have to be run"
        return Unsupported(message, "choose a package or version with a wheel")
    return UnknownName(f"there is no package {name}", "check its name on your package index")
