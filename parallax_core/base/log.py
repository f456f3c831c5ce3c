"""Configures logging; only the command line does so, once."""

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
QUIET = ("uvicorn", "asyncio", "httpx", "httpx2", "huggingface_hub", "filelock")


def configure(*, verbose: bool, node: str = "") -> None:
    """Send log records to standard error: Parallax's from INFO (or DEBUG) on, noisy libraries' from WARNING on.

    Each line begins with the name of the ``node``, if it has one.
    """
    prefix = f"[{node}] ".replace("%", "%%") if node else ""
    logging.basicConfig(format=prefix + FORMAT, datefmt="%H:%M:%S", level=logging.DEBUG if verbose else logging.INFO)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
