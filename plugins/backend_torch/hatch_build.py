"""Compiles the kernels when a wheel or an editable installation is made; run as a script, compiles them in place."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

HERE = Path(__file__).resolve().parent
NAME = "native.dylib" if sys.platform == "darwin" else "native.so"
FOLDER = "parallax_backend_torch/kernels"

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"]
ARITHMETIC = ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"]
VARIANTS = {"avx2": ["-mavx2", "-mfma", "-mf16c"]} if platform.machine() in ("x86_64", "AMD64") else {}
"""Instructions that not every machine has, for which the kernels are compiled once more; chosen when loaded."""


class KernelHook(BuildHookInterface[Any]):
    """Adds the compiled library to what is built, if there is a compiler."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place for an editable installation, and beside it for a wheel."""
        if version == "editable":
            compile_library(HERE / FOLDER / NAME)
            return
        built = Path(tempfile.mkdtemp(prefix="parallax-kernels-")) / NAME
        if compile_library(built):
            build_data["force_include"][str(built)] = f"{FOLDER}/{NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"


def compile_library(target: Path, extra: list[str] | None = None) -> bool:
    """Compile ``csrc`` into one shared library; return whether that worked, and say so if not."""
    compiler = find_compiler()
    if not compiler:
        print("parallax-backend-torch: there is no C++ compiler; torch will compute, more slowly", file=sys.stderr)  # noqa: T201
        return False
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / NAME
        error = _run_compiler(compiler, built, extra or [])
        if error:
            print(f"parallax-backend-torch: the kernels do not compile; torch will compute\n{error}", file=sys.stderr)  # noqa: T201
            return False
        # A process that has the old file open keeps it; writing into it would change code that is running.
        shutil.move(built, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return True


def find_compiler() -> list[str]:
    """Return the command of ``CXX``, or of the compiler of this machine; nothing if there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named if shutil.which(named[0]) else []
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), [])


def list_units() -> list[tuple[Path, list[str]]]:
    """Return each source file with its own flags; the kernels once for each kind of instructions."""
    once = [(path, []) for path in sorted((HERE / "csrc").glob("*.cpp"))]
    again = [
        (path, [f"-DPLX_ISA={name}", *flags])
        for name, flags in VARIANTS.items()
        for path in sorted((HERE / "csrc/isa").glob("*.cpp"))
    ]
    plain = [(path, ["-DPLX_ISA=plain"]) for path in sorted((HERE / "csrc/isa").glob("*.cpp"))]
    return [*once, *plain, *again]


def _run_compiler(compiler: list[str], built: Path, extra: list[str]) -> str:
    """Compile and link; return what the compiler said if it failed."""
    running = []
    for number, (source, flags) in enumerate(list_units()):
        unit = built.with_name(f"{number}.o")
        command = [*compiler, *FLAGS, *ARITHMETIC, *extra, *flags, "-I", str(HERE / "csrc"), "-c", str(source)]
        running.append((unit, subprocess.Popen([*command, "-o", str(unit)], stderr=subprocess.PIPE, text=True)))
    said = [process.communicate()[1] for _, process in running]
    if any(process.returncode for _, process in running):
        return "\n".join(said)
    link = [*compiler, "-shared", "-pthread", *extra, *(str(unit) for unit, _ in running), "-o", str(built)]
    linked = subprocess.run(link, stderr=subprocess.PIPE, text=True, check=False)
    return linked.stderr if linked.returncode else ""


if __name__ == "__main__":
    raise SystemExit(not compile_library(HERE / FOLDER / NAME))
