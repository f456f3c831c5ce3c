"""The compiled library: found, checked, loaded once, and asked how it is.

``hatch_build.py`` compiles ``csrc`` into one file beside this one. It has a plain C interface and is loaded with
ctypes, so it belongs to no version of torch or Python. Where no compiler was at hand there is no such file, and torch
does the work.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from parallax_backend_torch.kernels.signature import INTERFACE, declare_functions

FILE = Path(__file__).with_name("native.dylib" if sys.platform == "darwin" else "native.so")
Mode = Literal["auto", "plain", "off"]
_log = logging.getLogger(__name__)


class Choice:
    """Whether this process uses the compiled library; decided at the first use, or by ``choose_kernels``."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self.reason = ""
        self.decided = False

    def decide(self, mode: Mode, file: Path = FILE) -> None:
        """Load the library unless it is turned off, and remember why not."""
        self.library, self.reason = (None, "turned off") if mode == "off" else open_library(file)
        self.decided = True
        if self.library is not None:
            self.library.plx_use_plain(mode == "plain")
        elif mode != "off":
            _log.warning("the compiled kernels are not used: %s; torch computes instead, more slowly", self.reason)


_choice = Choice()


def choose_kernels(mode: Mode = "auto") -> str:
    """Decide, for this process, whether the compiled library is used; call before the first weight is packed.

    Args:
        mode: ``auto`` uses the library where it loads, and ``plain`` too, but no instructions beyond those of every
            processor of its kind; ``off`` never uses it.

    Returns:
        One line that says what is used, such as ``compiled, avx2, 2 threads`` or ``torch: turned off``.
    """
    _choice.decide(mode)
    return describe_kernels()


def describe_kernels() -> str:
    """Return what is used, in one line."""
    library = find_library()
    if library is None:
        return f"torch: {_choice.reason}"
    return f"compiled, {read_isa(library)}, {library.plx_threads()} threads"


def find_library() -> ctypes.CDLL | None:
    """Return the library of this process, or None where torch computes."""
    if not _choice.decided:
        _choice.decide("auto")
    return _choice.library


def open_library(file: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library and nothing, or nothing and the reason."""
    if not file.exists():
        return None, f"{file.name} was not built, for lack of a C++ compiler"
    try:
        library = ctypes.CDLL(str(file))
        found = library.plx_interface()
        if found == INTERFACE:
            declare_functions(library)
    except (OSError, AttributeError) as error:
        return None, f"{file.name} does not load ({error})"
    if found != INTERFACE:
        return None, f"{file.name} has interface {found}, not {INTERFACE}; reinstall parallax-backend-torch"
    library.plx_set_threads(count_cores())
    return library, ""


def read_isa(library: ctypes.CDLL) -> str:
    """Return the name of the instructions the library has chosen for this processor."""
    name: bytes = library.plx_isa()
    return name.decode()


def set_threads(count: int) -> None:
    """Use so many threads, the calling one included, in all later calls of this process; at least 1.

    Threads of torch are another pool, and are left alone.
    """
    library = find_library()
    if library is not None:
        library.plx_set_threads(max(1, count))


def count_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
