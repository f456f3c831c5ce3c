"""Confines the process of a peer: no UDP, and a limit of memory.

Lattica asks public STUN servers for the address of its machine whenever it starts, and has no switch for that. Links
use TCP only, so on Linux a filter of the kernel (seccomp) refuses UDP to the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import platform
import resource
import socket
import struct
import sys

MOST_MEMORY = 2 * 2**30
"""The most bytes of data in the process: lattica itself takes requests of any size from anybody."""

_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""By machine: the number of its architecture for the kernel's audit, and that of the system call ``socket``."""

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_AT_CALL, _AT_ARCHITECTURE, _AT_FAMILY, _AT_TYPE = 0, 4, 16, 24
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_TYPE_MASK = 0xF


def limit_memory() -> None:
    """Make allocations beyond `MOST_MEMORY` fail, which ends the process; it is then started again."""
    with contextlib.suppress(OSError, ValueError):  # a smaller limit is set already
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))


def refuse_udp() -> bool:
    """Refuse UDP sockets to this process, for good; return whether the system can do that."""
    found = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or found is None:
        return False
    program = _write_program(*found)
    code = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero):
        return False
    return bool(libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), head, zero, zero) == 0)


def _write_program(architecture: int, call: int) -> bytes:
    """Return a Berkeley Packet Filter program; jump targets are numbers of skipped instructions."""
    lines = (
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_EQUAL, 0, 8, architecture),
        (_LOAD, 0, 0, _AT_CALL),
        (_EQUAL, 0, 6, call),
        (_LOAD, 0, 0, _AT_FAMILY),
        (_EQUAL, 1, 0, socket.AF_INET),
        (_EQUAL, 0, 3, socket.AF_INET6),
        (_LOAD, 0, 0, _AT_TYPE),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, socket.SOCK_DGRAM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    )
    return b"".join(struct.pack("HBBI", *line) for line in lines)
