"""The child process of SGLang: ``python -m parallax_backend_sglang.child FD`` with a socket FD."""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys

from parallax_backend_sglang.frames import Failed, Frame, LoadEngine, pack, receive
from parallax_backend_sglang.inbox import Inbox, end_group
from parallax_core.api import ParallaxError


def main() -> None:
    """Serve the parent process until it closes the socket, which ends this process at once."""
    link = socket.socket(fileno=int(sys.argv[1]))
    inbox = Inbox[Frame](link, receive)
    try:
        message = inbox.wait()
        assert isinstance(message, LoadEngine), "the first message says what to load"
        importlib.import_module("parallax_backend_sglang.serving").serve(link, inbox, message)
    except ParallaxError as error:
        _report(link, Failed(error.message, error.hint))
    except Exception as error:
        _report(link, Failed(f"the model could not be loaded: {type(error).__name__}: {error}"))
        raise
    finally:
        end_group()


def _report(link: socket.socket, failure: Failed) -> None:
    with contextlib.suppress(OSError):
        link.sendall(pack(failure))


if __name__ == "__main__":
    main()
