"""Sets the environment for importing vLLM and for its processes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from parallax_backend_vllm.settings import VllmSettings
from parallax_core.api import Machine, engine_environment

VARIABLES: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_PLUGINS": "",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""The model is a folder on this machine, so nothing is fetched or reported. Plugins of vLLM would run in all of its
processes, and none is needed. A fork would copy the locks of threads. Threads that are bound to cores would share them
with those of another engine on this machine."""
OPENMP = "libiomp5.so"
"""Intel's OpenMP, which vLLM's CPU build requires; GNU's makes threads spin when other processes use the cores."""


def set_environ() -> None:
    """Set the variables that vLLM reads when it is imported; those that the user set are kept."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


def choose_gpu(device: str) -> None:
    """Show vLLM only the GPU that a plan names, such as ``cuda:1``; any other device leaves the choice to vLLM."""
    index = device.partition(":")[2]
    if device.startswith("cuda") and index:
        os.environ["CUDA_VISIBLE_DEVICES"] = index


def set_cpu_environ(settings: VllmSettings) -> None:
    """Set the variables of OpenMP for the processes that vLLM starts, where the arithmetic is done."""
    set_threads(settings)
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    library = find_openmp(list_places())
    if library is not None:
        os.environ["LD_PRELOAD"] = add_preload(os.environ.get("LD_PRELOAD", ""), str(library))


@contextmanager
def limit_environ() -> Iterator[None]:
    """Limit the environment of processes started meanwhile to `engine_environment`: no keys.

    They get those of this process, since `multiprocessing` takes no others. It is a worker, which has nothing to do
    but wait for its engine meanwhile: its model is here, and its settings have been read.
    """
    kept = engine_environment()
    held = {name: os.environ.pop(name) for name in {*os.environ} - {*kept}}
    try:
        yield
    finally:
        for name, value in held.items():
            os.environ.setdefault(name, value)


def set_threads(settings: VllmSettings) -> int:
    """Set and return the number of threads that compute; vLLM takes one thread if the variable is missing."""
    threads = settings.threads or count_threads()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def load_openmp() -> None:
    """Load Intel's OpenMP into this process, where stages compute, before PyTorch is imported."""
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    library = find_openmp(list_places())
    if library is not None and "torch" not in sys.modules:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def list_places() -> list[Path]:
    """Return the folders of this environment, from which `find_openmp` starts."""
    return [Path(sys.prefix), *map(Path, sys.path)]


def count_threads() -> int:
    """Return the threads that compute by default: one core is left to the other processes."""
    return max(1, Machine().count_cores() - 1)


def find_openmp(places: Sequence[Path]) -> Path | None:
    """Return Intel's OpenMP in the ``lib`` folder of an environment, found from its prefix or its site-packages."""
    for place in places:
        for folder in (place, *place.parents):
            if (found := folder / "lib" / OPENMP).is_file():
                return found
    return None


def add_preload(present: str, library: str) -> str:
    """Return ``LD_PRELOAD`` with ``library`` in it, once."""
    entries = [entry for entry in present.split(":") if entry]
    return ":".join(entries if library in entries else [*entries, library])
