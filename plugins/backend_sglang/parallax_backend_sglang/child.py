"""The child process that runs SGLang: ``python -m parallax_backend_sglang.child FD``, where FD is a socket."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import socket
import sys

from parallax_backend_sglang.frames import Failed, LoadEngine, pack, receive
from parallax_core.api import ParallaxError

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Do what the parent process asks for, until it closes the socket."""
    _end_with_parent()
    link = socket.socket(fileno=int(sys.argv[1]))
    message = receive(link)
    try:
        if isinstance(message, LoadEngine):
            importlib.import_module("parallax_backend_sglang.serving").serve(link, message)
    except ParallaxError as error:
        _report(link, Failed(error.message, error.hint))
    except Exception as error:
        _report(link, Failed(f"the model could not be loaded: {type(error).__name__}: {error}"))
        raise
    finally:
        end_group()


def end_group() -> None:
    """Kill this process and the processes that SGLang has started, and remove their temporary files."""
    sys.stdout.flush()
    sys.stderr.flush()
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _report(link: socket.socket, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        link.sendall(pack(failure))


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, on Linux; elsewhere the end of the socket must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
