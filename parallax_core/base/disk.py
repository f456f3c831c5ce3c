"""Faults of a disk: whether it is full, and how they are logged."""

from __future__ import annotations

import errno
import logging
import sqlite3

FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: BaseException | None) -> bool:
    """Return whether something could not be written because the disk, or what this user may have of it, is full."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in FULL


class FaultLog:
    """Logs a fault that comes again and again once, and that it is over."""

    def __init__(self, logger: logging.Logger, subject: str) -> None:
        """Log with ``logger``; ``subject`` is what works again in the end, such as ``the response store``."""
        self._logger = logger
        self._subject = subject
        self._fault = ""

    def note(self, fault: str) -> None:
        """Note that there is a fault; it is logged if it is another one than before."""
        if fault != self._fault:
            self._fault = fault
            self._logger.warning("%s", fault)

    def clear(self) -> None:
        """Note that writes succeed again."""
        if self._fault:
            self._fault = ""
            self._logger.info("%s can be written again", self._subject)
