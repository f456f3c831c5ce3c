"""Finds the library that a loaded library really calls, to report the BLAS in use.

The dynamic linker writes the address of each external function into a slot of the calling library. This reads that
slot (ELF-64, glibc; see elf(5) and dlinfo(3)), so it reports the library that is called, not the one intended.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

RTLD_DI_LINKMAP = 2
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_JMPREL = 2, 5, 6, 7, 8, 23
SYMBOL_BYTES = RELOCATION_BYTES = 24


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_size_t))


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def find_library(name: str) -> Path:
    """Return the path of the library file called ``name`` that this process has mapped.

    Raises:
        LookupError: if no such file is mapped.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.partition("/")[2])
        if path.name == name:
            return Path("/") / path
    message = f"{name} is not loaded"
    raise LookupError(message)


def find_owner(library: Path, symbol: str) -> Path:
    """Return the file of the library whose ``symbol`` the loaded ``library`` calls.

    Raises:
        LookupError: if ``library`` is not loaded or does not call ``symbol``.
    """
    link = _find_link(library)
    table = _read_dynamic(link)
    for slot, index in _list_relocations(link, table):
        (offset,) = struct.unpack("<I", ctypes.string_at(table[DT_SYMTAB] + index * SYMBOL_BYTES, 4))
        if ctypes.string_at(table[DT_STRTAB] + offset) == symbol.encode():
            return _name_owner(ctypes.c_size_t.from_address(slot).value)
    message = f"{library.name} does not call {symbol}"
    raise LookupError(message)


def _find_link(library: Path) -> _LinkMap:
    try:
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        raise LookupError(str(error)) from error
    link = ctypes.POINTER(_LinkMap)()
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    if dlinfo(handle._handle, RTLD_DI_LINKMAP, ctypes.byref(link)) != 0:  # noqa: SLF001  # there is no other way to the handle
        message = f"the linker has no information about {library.name}"
        raise LookupError(message)
    return link.contents


def _read_dynamic(link: _LinkMap) -> dict[int, int]:
    """Return the dynamic section, tag to value, with its pointers made absolute."""
    entries: dict[int, int] = {}
    address = link.dynamic
    while True:
        tag, value = struct.unpack("<qQ", ctypes.string_at(address, 16))
        if tag == 0:
            break
        entries[tag] = value
        address += 16
    for tag in (DT_STRTAB, DT_SYMTAB, DT_RELA, DT_JMPREL):
        # Most C libraries have made these absolute already when they loaded the file; some leave them relative.
        if tag in entries and entries[tag] < link.base:
            entries[tag] += link.base
    return entries


def _list_relocations(link: _LinkMap, table: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the address of each slot and the index of the symbol that belongs there."""
    for start, size in ((DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)):
        if start in table:
            data = ctypes.string_at(table[start], table[size])
            for offset, info, _ in struct.iter_unpack("<QQq", data[: len(data) // RELOCATION_BYTES * RELOCATION_BYTES]):
                if info >> 32:
                    yield link.base + offset, info >> 32


def _name_owner(address: int) -> Path:
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    found = _DlInfo()
    if dladdr(address, ctypes.byref(found)) == 0 or found.file is None:
        message = f"no library holds the address {address:#x}"
        raise LookupError(message)
    return Path(os.fsdecode(found.file))
