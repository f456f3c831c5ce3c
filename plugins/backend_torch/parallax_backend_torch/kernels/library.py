"""Finds, checks and loads the compiled library, and describes it.

``hatch_build.py`` compiles ``csrc`` into one file next to this one. It has a plain C interface and is loaded with
ctypes, so it does not depend on the version of torch or Python. Without a compiler the file is not built, and torch
computes instead.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from itertools import count, takewhile
from pathlib import Path
from typing import Literal, get_args

from parallax_backend_torch.kernels.signature import INTERFACE, declare_functions, find_misfit
from parallax_core.api import ParallaxError

FILE = Path(__file__).with_name("native.dylib" if sys.platform == "darwin" else "native.so")
X86Mode = Literal["avx2", "avx512", "avx512_vnni", "avx512_bf16"]
ArmMode = Literal["neon", "neon_dotprod", "neon_i8mm", "neon_bf16"]
Mode = Literal["auto", "off", "plain", X86Mode, ArmMode]
MODES: tuple[Mode, ...] = get_args(Mode)
"""The kernels to use: the fastest on this processor, none (torch computes), or those of an instruction set."""
_log = logging.getLogger(__name__)


class Choice:
    """Decides whether this process uses the compiled library, on the first use or in ``choose_kernels``."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self.reason = ""
        self.decided = False

    def decide(self, mode: Mode, file: Path = FILE) -> None:
        """Load the library unless it is turned off, and keep the reason if it is not used.

        Raises:
            ParallaxError: the instruction set ``mode`` cannot be used on this machine.
        """
        library, reason = (None, "turned off") if mode == "off" else open_library(file)
        if mode not in {"auto", "off"}:
            use_isa(library, mode, reason)
        elif library is not None:
            library.plx_use_isa(None)
        elif mode == "auto":
            _log.warning("compiled kernels not used, torch computes more slowly: %s", reason)
        self.library, self.reason, self.decided = library, reason, True


_choice = Choice()


def choose_kernels(mode: Mode = "auto") -> str:
    """Decide for this process whether the compiled library is used; call before the first weight is packed.

    Args:
        mode: ``auto`` uses the library if it loads, with the fastest instruction set of this machine; the name of an
            instruction set uses that one; ``off`` never uses the library.

    Returns:
        A line that describes the choice, such as ``compiled, avx2, 2 threads`` or ``torch: turned off``.

    Raises:
        ParallaxError: the processor lacks the instruction set, or the library does not load.
    """
    _choice.decide(mode)
    return describe_kernels()


def use_isa(library: ctypes.CDLL | None, name: str, reason: str) -> None:
    """Make the library use an instruction set.

    Args:
        library: the library, or None if it does not load.
        name: the name of the instruction set.
        reason: the reason if the library does not load.

    Raises:
        ParallaxError: the processor lacks it, or there is no library.
    """
    if library is None:
        raise ParallaxError(f"there are no kernels for {name}: {reason}", "set PARALLAX_TORCH__KERNELS=auto")
    if not library.plx_use_isa(name.encode()):
        message = f"this processor cannot run the kernels for {name}"
        raise ParallaxError(message, f"set PARALLAX_TORCH__KERNELS to auto, off, {', '.join(list_isas(library))}")


def list_isas(library: ctypes.CDLL) -> list[str]:
    """Return the names of the instruction sets of this processor that have kernels, the most basic first."""
    return [name.decode() for name in takewhile(bool, map(library.plx_list_isas, count()))]


def describe_kernels() -> str:
    """Return a one-line description of the kernels in use."""
    library = find_library()
    if library is None:
        return f"torch: {_choice.reason}"
    return f"compiled, {read_isa(library)}, {library.plx_threads()} threads"


def find_library() -> ctypes.CDLL | None:
    """Return the library of this process, or None if torch computes."""
    if not _choice.decided:
        _choice.decide("auto")
    return _choice.library


def open_library(file: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library and an empty reason, or None and the reason."""
    if not file.exists():
        return None, f"{file.name} was not built, for lack of a C++ compiler"
    try:
        library = ctypes.CDLL(str(file))
        found = library.plx_interface()
        if found != INTERFACE:
            return None, f"{file.name} has interface {found}, not {INTERFACE}; reinstall parallax-backend-torch"
        declare_functions(library)
    except (OSError, AttributeError) as error:
        return None, f"{file.name} does not load ({error})"
    if misfit := find_misfit(library):
        return None, f"{file.name} has another {misfit}; reinstall parallax-backend-torch"
    library.plx_set_threads(count_cores())
    return library, ""


def read_isa(library: ctypes.CDLL) -> str:
    """Return the name of the instruction set the library uses."""
    name: bytes = library.plx_isa()
    return name.decode()


def set_threads(count: int) -> None:
    """Set the number of threads, including the calling one, for all later calls of this process; at least 1.

    The threads of torch are a separate pool, which is not changed.
    """
    library = find_library()
    if library is not None:
        library.plx_set_threads(max(1, count))


def count_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
