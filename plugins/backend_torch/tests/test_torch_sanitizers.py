"""The compiled kernels under the sanitizers of the compiler: nothing out of bounds, nothing undefined, no race."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.hatch import load_build

HERE = Path(__file__).parent
SOURCES = HERE.parent / "csrc"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or "c++"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-pthread",
    "-ffp-contract=fast",
    "-Wno-psabi",
    "-fno-sanitize-recover=all",
    f"-I{SOURCES}",
]

pytestmark = pytest.mark.timeout(600)


def compile_units(folder: Path, units: list[tuple[Path, list[str]]], sanitizer: str) -> Path:
    """Compile each source with its own flags, some at once, and link them."""

    def compile_unit(numbered: tuple[int, tuple[Path, list[str]]]) -> str:
        number, (source, flags) = numbered
        unit = str(folder / f"{number}.o")
        subprocess.run([COMPILER, *FLAGS, sanitizer, *flags, "-c", str(source), "-o", unit], check=True)
        return unit

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_unit, enumerate(units)))
    subprocess.run([COMPILER, sanitizer, "-pthread", *objects, "-o", str(folder / "run")], check=True)
    return folder / "run"


def run_program(program: Path) -> None:
    """Run it in a bare environment, where no library is loaded before the sanitizer's own."""
    done = subprocess.run([program], env={}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def list_units(machine: str, *flags: str) -> list[tuple[Path, list[str]]]:
    """Return the sources of the kernels for ``machine``, and of what calls them, each with its flags."""
    units = [*load_build().list_units(machine), (HERE / "driver.cpp", [])]
    return [(source, [*given, *flags]) for source, given in units]


@pytest.mark.nightly
def test_kernels_stay_within_their_memory(tmp_path: Path) -> None:
    units = list_units(load_build().find_machine([COMPILER]))
    run_program(compile_units(tmp_path, units, "-fsanitize=address,undefined,float-cast-overflow"))


@pytest.mark.nightly
def test_kernels_have_no_races(tmp_path: Path) -> None:
    """Which thread does what is decided by code that does not depend on the instruction set."""
    run_program(compile_units(tmp_path, list_units("", "-DPLX_PLAIN_ONLY"), "-fsanitize=thread"))


@pytest.mark.slow
def test_pool_does_each_task_once_without_races(tmp_path: Path) -> None:
    units: list[tuple[Path, list[str]]] = [(SOURCES / "pool.cpp", []), (HERE / "stress.cpp", [])]
    run_program(compile_units(tmp_path, units, "-fsanitize=thread"))


def test_pool_after_a_fork_does_nothing_of_the_job_before(tmp_path: Path) -> None:
    units: list[tuple[Path, list[str]]] = [(SOURCES / "pool.cpp", []), (HERE / "fork.cpp", [])]
    run_program(compile_units(tmp_path, units, "-fsanitize=undefined"))
