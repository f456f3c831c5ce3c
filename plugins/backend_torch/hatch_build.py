"""Compiles the kernels for a wheel or an editable installation; as a script, in place.

``CXX`` names the compiler, which may be a cross compiler. ``PARALLAX_BUILD_KERNELS`` selects the behaviour without a
compiler: ``auto``, the default, builds a distribution without kernels, in which torch computes; ``require``, used for
releases, fails. Kernels that do not compile are an error in both modes; ``off`` does not compile them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

HERE = Path(__file__).resolve().parent
NAME = "native.dylib" if sys.platform == "darwin" else "native.so"
FOLDER = "parallax_backend_torch/kernels"

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"]
ARITHMETIC = ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
X86 = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512_bf16": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
}
# Instructions in the order of the source: GCC otherwise moves loads ahead and runs out of registers. Clang ignores it.
NEON = ["-DPLX_NEON", "-fno-schedule-insns", "-Wno-ignored-optimization-argument"]
ARM = {
    "neon": NEON,
    "neon_dotprod": [*NEON, "-march=armv8.2-a+dotprod"],
    "neon_i8mm": [*NEON, "-march=armv8.2-a+dotprod+i8mm"],
    "neon_bf16": [*NEON, "-march=armv8.2-a+dotprod+i8mm+bf16"],
}
VARIANTS = {"x86_64": X86, "aarch64": ARM}
"""For each machine type, the optional instruction sets: the kernels are compiled again for each of them, and the best
one is chosen when the library is loaded."""
MODE = "PARALLAX_BUILD_KERNELS"


class KernelHook(BuildHookInterface[Any]):
    """Adds the compiled library to the distribution, if there is a compiler."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place for an editable installation, and in a temporary folder for a wheel."""
        if version == "editable":
            compile_library(HERE / FOLDER / NAME)
            return
        built = Path(tempfile.mkdtemp(prefix="parallax-kernels-")) / NAME
        if compile_library(built):
            build_data["force_include"][str(built)] = f"{FOLDER}/{NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{find_platform(find_machine(find_compiler()))}"


def compile_library(target: Path, extra: list[str] | None = None) -> bool:
    """Compile ``csrc`` into one shared library; return whether it was built, and print the reason if not.

    Raises:
        RuntimeError: if the kernels do not compile, or a compiler is required and missing.
    """
    mode, compiler = os.environ.get(MODE) or "auto", find_compiler()
    if mode not in {"auto", "require", "off"}:
        raise RuntimeError(f"{MODE} is {mode!r}, and can be auto, require or off")
    if mode == "off" or not compiler:
        reason = f"{MODE} is off" if mode == "off" else "there is no C++ compiler"
        if mode == "require":
            raise RuntimeError(f"{reason}; install one, or name it with CXX")
        tell(f"{reason}; torch will compute, more slowly")
        return False
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / NAME
        if error := _run_compiler(compiler, built, extra or []):
            raise RuntimeError(f"the kernels do not compile; {MODE}=off builds without them, which is slower\n{error}")
        # Replaced, not overwritten: a running process keeps the old file, whose code must not change.
        shutil.move(built, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return True


def find_compiler() -> list[str]:
    """Return the command of ``CXX``, or of this machine's compiler; empty without a compiler.

    Raises:
        RuntimeError: if ``CXX`` names a compiler that does not exist.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    if named and not shutil.which(named[0]):
        raise RuntimeError(f"CXX names the compiler {named[0]}, which does not exist")
    if named:
        return named
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), [])


def find_machine(compiler: list[str]) -> str:
    """Return the machine type that a compiler generates code for, such as ``x86_64`` or ``aarch64``."""
    asked = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=False)
    machine = asked.stdout.strip().partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def find_platform(machine: str) -> str:
    """Return the platform tag of a wheel with code for ``machine``.

    Raises:
        RuntimeError: if the wheel would get the tag of another machine type.
    """
    tag = next(sys_tags()).platform
    known = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64")}
    if machine in known and not tag.endswith(known[machine]):
        hint = f"set _PYTHON_HOST_PLATFORM=linux-{machine}"
        raise RuntimeError(f"the compiler generates code for {machine}, and the wheel is tagged {tag}; {hint}")
    return tag


def list_units(machine: str) -> list[tuple[Path, list[str]]]:
    """Return each source file with its flags; the kernels once for each instruction set of ``machine``."""
    once: list[tuple[Path, list[str]]] = [(path, []) for path in sorted((HERE / "csrc").glob("*.cpp"))]
    again = [
        (path, [f"-DPLX_ISA={name}", *flags])
        for name, flags in VARIANTS.get(machine, {}).items()
        for path in sorted((HERE / "csrc/isa").glob("*.cpp"))
    ]
    plain = [(path, ["-DPLX_ISA=plain"]) for path in sorted((HERE / "csrc/isa").glob("*.cpp"))]
    return [*once, *plain, *again]


def compile_units(
    compiler: list[str], units: list[tuple[Path, list[str]]], folder: Path, extra: list[str]
) -> tuple[list[str], str]:
    """Compile each source with its own flags, as for the library.

    Returns:
        The object files, and the compiler's errors, empty if it succeeded.
    """

    def compile_unit(numbered: tuple[int, tuple[Path, list[str]]]) -> tuple[str, str]:
        number, (source, flags) = numbered
        unit = str(folder / f"{number}.o")
        command = [*compiler, *FLAGS, *ARITHMETIC, *extra, *flags, "-I", str(HERE / "csrc"), "-c", str(source)]
        return unit, run_command([*command, "-o", unit])

    done = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a compiler takes 0.2 GB
        for compiled in pool.map(compile_unit, enumerate(units)):
            done.append(compiled)
            tell(f"compiled {len(done)} of {len(units)} files")
    return [unit for unit, _ in done], "\n".join(error for _, error in done if error)


def _run_compiler(compiler: list[str], built: Path, extra: list[str]) -> str:
    """Compile and link; return the compiler's errors, empty if it succeeded."""
    objects, said = compile_units(compiler, list_units(find_machine(compiler)), built.parent, extra)
    return said or run_command([*compiler, "-shared", "-pthread", *extra, *objects, "-o", str(built)])


def tell(line: str) -> None:
    """Print a line for who builds; pip hides it."""
    print(f"parallax-backend-torch: {line}", file=sys.stderr, flush=True)  # noqa: T201


def run_command(command: list[str]) -> str:
    """Run a compiler; return its errors, empty if it succeeded."""
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    return (ran.stderr or f"{command[0]} ended with {ran.returncode}") if ran.returncode else ""


if __name__ == "__main__":
    raise SystemExit(not compile_library(HERE / FOLDER / NAME))
