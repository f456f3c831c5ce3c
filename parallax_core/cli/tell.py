"""Prints the lines of commands that run for long."""

from __future__ import annotations

import logging
from typing import TextIO

from parallax_core.base.disk import is_full

logger = logging.getLogger(__name__)


def tell(line: str, stream: TextIO | None) -> None:
    """Print a line at once; a service goes on without it if the disk that it would be written to is full.

    Raises:
        OSError: if it cannot be written for another reason, such as a reader that has ended.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError as error:
        if not is_full(error):
            raise
        logger.warning("the disk of the output is full; not written: %s", line)
