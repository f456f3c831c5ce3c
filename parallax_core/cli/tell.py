"""Prints the lines of commands that run for long."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from parallax_core.base.disk import is_full
from parallax_core.base.log import write_line

logger = logging.getLogger(__name__)


def tell(line: str, stream: TextIO | None) -> None:
    """Print a line at once, as JSON if it is between those of such a log.

    A service goes on without it if the disk that it would be written to is full.

    Raises:
        OSError: if it cannot be written for another reason, such as a reader that has ended.
    """
    try:
        print(write_line(line) if stream is sys.stderr else line, file=stream, flush=True)
    except OSError as error:
        if not is_full(error):
            raise
        logger.warning("the disk of the output is full; not written: %s", line)
