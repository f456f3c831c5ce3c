"""The entry point of the command ``parallax`` and of ``python -m parallax_core``."""

from __future__ import annotations

import os

try:
    import signal
except KeyboardInterrupt:  # the import takes a moment
    os._exit(130)


def main() -> None:
    """Run the command line; until it is imported, an interrupt ends the process silently."""
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as under nohup
    if is_handled:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from parallax_core.cli import main as run

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
