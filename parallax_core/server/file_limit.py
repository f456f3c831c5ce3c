"""Raises the limit of open files, and so of connections, of this process."""

from __future__ import annotations

import logging
import resource

ENOUGH = 2**16
"""The highest limit that is requested; some systems report an infinite limit and then refuse it."""

logger = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise the number of files, connections included, that this process may open; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        logger.warning("this process may have only %d open files: %s", soft, error)
        return soft
    return most
