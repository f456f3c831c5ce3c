"""The environment of processes that run what comes with a model, or that strangers reach."""

from __future__ import annotations

import os

KEPT = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "TZ", "USER"),
        *("VIRTUAL_ENV", "XDG_RUNTIME_DIR"),
    }
)
"""Variables that programs need to find their files, and that hold no secret."""
KEPT_PREFIXES = ("DYLD_", "LC_", "LD_", "PYTHON")
"""The beginnings of others: of the linker, the locale and the interpreter."""


def bare_environment() -> dict[str, str]:
    """Return the variables of this process that any program needs.

    No others: tokens of hubs and clouds, keys of APIs and proxies with passwords have no names that one could list.
    """
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
