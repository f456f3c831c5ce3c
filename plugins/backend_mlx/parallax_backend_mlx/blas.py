"""Gives MLX a fast BLAS on Linux, where its own is about fifty times slower than the hardware allows.

MLX binds to the first ``cblas_sgemm`` the process has loaded when ``mlx.core`` is imported, so `activate` must run
before that import, as `parallax_backend_mlx.runtime` ensures. `ProcessSettings.blas` is ``auto`` (the default),
``off``, or the path of a library with the C interface of BLAS and 32-bit integers.

No error here is fatal: MLX then runs with its own BLAS, and `Blas.reason` gives the reason.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_backend_mlx.openblas import PREFIX, prepare_library
from parallax_backend_mlx.settings import PROCESS
from parallax_core.api import Machine, Unsupported, cache_folder

BUNDLED = "bundled BLAS"
VARIABLE = "PARALLAX_MLX__BLAS"
"""The environment variable that sets it; ``blas`` in ``[mlx]`` of the configuration file does the same."""

SMALL_PRODUCTS = {"SkylakeX", "Cooperlake", "SapphireRapids"}
"""The processors, in OpenBLAS's words, for which it has kernels for small matrices: those with AVX-512, of AMD too."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blas:
    """The result of `activate`."""

    name: str
    """The name and version, such as ``OpenBLAS 0.3.34``."""
    path: Path | None = None
    """The library that was loaded; None if none was."""
    reason: str = ""
    """The reason why no library was loaded."""
    has_small_products: bool = False
    """Whether it multiplies small matrices where they are, without packing them first."""
    leaves_core: bool = False
    """Whether it computes on one thread, while this process may use another core."""

    @property
    def is_slow(self) -> bool:
        """Whether matrix products run on the slow reference BLAS in MLX's wheel for Linux."""
        return self.name == BUNDLED


@functools.cache
def activate() -> Blas:
    """Load a fast BLAS into the process, once; later calls return the first result."""
    wanted = PROCESS.blas
    if wanted == "off":
        return Blas(BUNDLED, reason=f"{VARIABLE} is off")
    if sys.platform != "linux":
        return Blas("Accelerate", reason="MLX uses the BLAS of this system")
    try:
        return _load_library(_choose_library(wanted))
    except Exception as error:  # noqa: BLE001  # any failure here costs speed, never the model
        logger.warning("fast BLAS not loaded, running slowly reason=%s", error)
        return Blas(BUNDLED, reason=str(error))


def _choose_library(wanted: str) -> Path:
    if "mlx.core" in sys.modules:
        message = "mlx.core was imported before this backend"
        raise Unsupported(message, "import parallax_backend_mlx.runtime first")
    if wanted != "auto":
        return Path(wanted).expanduser().resolve(strict=True)
    if platform.machine() != "x86_64":
        message = f"no OpenBLAS is prepared for {platform.machine()}"
        raise Unsupported(message, f"name a library in {VARIABLE}")
    return prepare_library(cache_folder("blas"))


def _load_library(path: Path) -> Blas:
    _check_interface(path)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        _limit_threads(library)
    return Blas(
        _describe_library(library, path),
        path,
        has_small_products=_find_core(library) in SMALL_PRODUCTS,
        leaves_core=_count_threads(library) == 1 and Machine().count_cores() > 1,
    )


def _check_interface(path: Path) -> None:
    """Check a library before it is loaded globally, which cannot be undone."""
    if not hasattr(ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL), "cblas_sgemm"):
        message = f"{path} has no function cblas_sgemm"
        raise Unsupported(message, f"unset {VARIABLE}, or name another library in it")


def _limit_threads(library: ctypes.CDLL) -> None:
    """Limit OpenBLAS to one thread less than the cores of this process.

    Its threads wait for each other by spinning. With one thread per core, another busy process, such as the server,
    makes every product wait for a time slice: measured on two cores, prefill fell from 190 to 20 tokens per second,
    while one thread stayed at 150, and was as fast as two on an idle machine.
    """
    if set_threads := _find_function(library, "set_num_threads"):
        set_threads(ctypes.c_int(max(1, Machine().count_cores() - 1)))


def _count_threads(library: ctypes.CDLL) -> int:
    """Return the threads of OpenBLAS; 0 for another library."""
    count = _find_function(library, "get_num_threads")
    return int(count()) if count else 0


def _find_core(library: ctypes.CDLL) -> str:
    """Return the processor whose kernels OpenBLAS chose, in its words; empty for another library."""
    return _ask(library, "get_corename")


def _describe_library(library: ctypes.CDLL, path: Path) -> str:
    """Return the name and version of OpenBLAS, or the name of another library's file."""
    if not (config := _ask(library, "get_config")):
        return path.name
    product, version = config.split()[:2]
    # Builds append their own numbers to the three of OpenBLAS.
    return f"{product} {'.'.join(version.split('.')[:3])}"


def _ask(library: ctypes.CDLL, name: str) -> str:
    """Return the text that a function of OpenBLAS returns; empty for another library."""
    if (function := _find_function(library, name)) is None:
        return ""
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _find_function(library: ctypes.CDLL, name: str) -> Any | None:  # noqa: ANN401 -- ctypes has no name for its type
    """Return a function of OpenBLAS; None for another library."""
    names = (f"{PREFIX}openblas_{name}", f"openblas_{name}")
    return next((getattr(library, each) for each in names if hasattr(library, each)), None)
