"""Where the command begins; ``python -m parallax_core`` is the same."""

from __future__ import annotations

import os

try:
    import signal
except KeyboardInterrupt:  # it imports a few others, which takes a moment, too
    os._exit(130)


def main() -> None:
    """Run the command line; until it is imported, an interrupt ends the process without a word."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as under nohup
    if is_heard:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from parallax_core.cli import main as run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
