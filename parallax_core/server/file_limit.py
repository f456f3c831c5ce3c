"""How many connections this process may have."""

from __future__ import annotations

import logging
import resource

ENOUGH = 2**16
"""Nobody asks for more; some systems call their limit infinite, and then refuse it."""

logger = logging.getLogger(__name__)


def raise_limit() -> int:
    """Let this process open as many files as it may, of which a connection is one; return how many that is."""
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
