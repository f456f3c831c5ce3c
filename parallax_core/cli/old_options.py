"""Hints for options of GradientHQ's program of the same name, which users of it type from habit."""

from __future__ import annotations

MODEL = "name the model itself, as in `parallax {command} MODEL`"
RELAY = "see `parallax {command} --help` for --relay, which needs a machine of your own that all can reach"
UNREPORTED = "leave it out: nothing is reported to anybody"
URL = "write --url http://ADDRESS:PORT/v1, the address that the server prints"
JOIN = "give `parallax join` the code that `parallax run` prints, or its address"
OPTIONS: dict[str, dict[str, str]] = {
    "-m": {"run": MODEL, "serve": MODEL, "worker": MODEL},
    "--model-name": {"run": MODEL, "serve": MODEL},
    "--model-path": {"run": MODEL, "serve": MODEL, "worker": MODEL, "join": "the server says which model it is"},
    "-n": {"run": "write --nodes N, or leave it out: every machine that joins takes part"},
    "--init-nodes-num": {"run": "write --nodes N, or leave it out: every machine that joins takes part"},
    "-s": {"join": JOIN, "chat": URL},
    "--scheduler-addr": {"join": JOIN, "chat": URL},
    "-r": {"run": RELAY, "join": RELAY, "chat": "leave it out: what `parallax join` forwards needs no relay here"},
    "--use-relay": {"run": RELAY, "join": RELAY},
    "-u": {"run": UNREPORTED, "join": UNREPORTED},
    "--skip-upload": {"run": UNREPORTED, "join": UNREPORTED},
    "--max-batch-size": {"join": "give the server --max-running: it decides how many requests run at once"},
    "--max-sequence-length": {"join": "leave it out: the server derives the length from the memory of all machines"},
    "--max-num-tokens-per-batch": {"join": "give the server --set max_batch_tokens=N"},
    "--kv-block-size": {"join": "leave it out: the backend chooses the size of pages"},
    "--start-layer": {"join": "`parallax worker MODEL --layers A-B` runs certain layers"},
    "--end-layer": {"join": "`parallax worker MODEL --layers A-B` runs certain layers"},
    "--use-hfcache": {"run": "write --offline to use only what is on this machine", "serve": "write --offline"},
    "--gpu-backend": {"run": "write --backend NAME", "join": "the server says which backend it is"},
    "--tp-size": {"run": "see docs/how-to/engines.md for tensor parallelism", "serve": "see docs/how-to/engines.md"},
}
"""The hint for each option, by the command that it was given to."""


def find_hint(command: str, option: str) -> str:
    """Return the hint for an option that a command does not have; empty: it was none of that program's."""
    return OPTIONS.get(option, {}).get(command, "").format(command=command)
