"""The compiled kernels under the sanitizers of the compiler: nothing out of bounds, nothing undefined, no race."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
WIDE = ["-mavx2", "-mfma", "-mf16c"]

pytestmark = pytest.mark.timeout(600)


def compile_units(folder: Path, units: list[tuple[Path, list[str]]], sanitizer: str) -> Path:
    """Compile each source with its own flags, all at once, and link them."""
    running = [
        subprocess.Popen([COMPILER, *FLAGS, sanitizer, *flags, "-c", str(source), "-o", str(folder / f"{number}.o")])
        for number, (source, flags) in enumerate(units)
    ]
    assert [process.wait() for process in running] == [0] * len(units)
    objects = [str(folder / f"{number}.o") for number in range(len(units))]
    subprocess.run([COMPILER, sanitizer, "-pthread", *objects, "-o", str(folder / "run")], check=True)
    return folder / "run"


def run_program(program: Path) -> None:
    """Run it in a bare environment, where no library is loaded before the sanitizer's own."""
    done = subprocess.run([program], env={}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_stay_in_bounds_and_defined(tmp_path: Path) -> None:
    isa = sorted((SOURCES / "isa").glob("*.cpp"))
    units: list[tuple[Path, list[str]]] = [(path, []) for path in (*sorted(SOURCES.glob("*.cpp")), HERE / "driver.cpp")]
    units += [(path, ["-DPLX_ISA=plain"]) for path in isa]
    if os.uname().machine == "x86_64":
        units += [(path, ["-DPLX_ISA=avx2", *WIDE]) for path in isa]
    run_program(compile_units(tmp_path, units, "-fsanitize=address,undefined"))


@pytest.mark.slow
def test_pool_does_each_piece_once_without_races(tmp_path: Path) -> None:
    units: list[tuple[Path, list[str]]] = [(SOURCES / "pool.cpp", []), (HERE / "stress.cpp", [])]
    run_program(compile_units(tmp_path, units, "-fsanitize=thread"))


def test_pool_after_a_fork_does_nothing_of_the_job_before(tmp_path: Path) -> None:
    units: list[tuple[Path, list[str]]] = [(SOURCES / "pool.cpp", []), (HERE / "fork.cpp", [])]
    run_program(compile_units(tmp_path, units, "-fsanitize=undefined"))
