"""The environment variables and the private folder of the child process that runs SGLang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from parallax_backend_sglang.probe import has_cuda
from parallax_core.api import engine_environment

STAND_INS = Path(__file__).parent / "cpu_stand_ins"
"""The folder with stand-ins for packages without a CPU build."""


def make_environment(folder: str, *, on_cpu: bool, threads: int) -> dict[str, str]:
    """Return the environment of a child process, which has no keys; see `engine_environment`.

    Args:
        folder: its private folder, which has its sockets and other temporary files.
        on_cpu: whether it computes on the CPU; only then are the stand-ins on its path.
        threads: the threads that compute; the variable OMP_NUM_THREADS overrides it.
    """
    found = engine_environment()
    found |= {
        "TMPDIR": folder,
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",  # of packages that this machine does not need
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",  # the model is on this machine
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",  # log-probabilities before the temperature
    }
    if on_cpu:
        path = [str(STAND_INS), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        found |= {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": os.pathsep.join(path)}
        found.setdefault("OMP_NUM_THREADS", str(threads))
    return found


def import_sglang() -> None:
    """Import SGLang as the child process does, which on a CPU has the stand-ins; exit with an error if it cannot."""
    folder = make_folder()
    try:
        environment = make_environment(folder, on_cpu=not has_cuda(), threads=1)
        status = subprocess.call([sys.executable, "-P", "-c", "import sglang"], env=environment)
    finally:
        remove_folder(folder)
    sys.exit(status)


def make_folder() -> str:
    """Make a folder that only this user can enter; its path is short, since paths of sockets must be."""
    return tempfile.mkdtemp(prefix="sglang-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)  # noqa: S108


def remove_folder(folder: str) -> None:
    """Remove the folder of a child process that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
