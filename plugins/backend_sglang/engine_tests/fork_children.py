"""A process that has imported SGLang and forks a child process for each stage, so that a stage starts in a second.

``python -P fork_children.py FD``: over the socket FD come file descriptors, each with the private folder of a child;
the process id of the child goes back. A child is what `parallax_backend_sglang.stage_child` is, with SGLang imported. A
file ``fail`` in its folder makes its steps fail once SGLang has computed the rows.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from parallax_backend_sglang import compat, stage_child
from parallax_backend_sglang.compat_stage import LayerRunner


def main() -> None:
    """Fork children until the other end closes."""
    link = socket.socket(fileno=int(sys.argv[1]))
    compat.check_interface(compat.ENGINE)
    compat.find("sglang.srt.models.registry:ModelRegistry").get_supported_archs()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that ended children are no zombies
    while True:
        folder, handles, *_ = socket.recv_fds(link, 4096, 1)
        if not handles:
            os._exit(0)  # the end of an interpreter with SGLang takes seconds
        if (pid := os.fork()) == 0:
            link.close()
            run_child(socket.socket(fileno=handles[0]), folder.decode())
        os.close(handles[0])
        link.sendall(pid.to_bytes(8))


def run_child(link: socket.socket, folder: str) -> None:
    """Run a stage in a process group of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ["TMPDIR"] = folder
    run = LayerRunner.run

    def fail_if_asked(*arguments: Any) -> Any:
        found = run(*arguments)
        if Path(folder, "fail").exists():
            raise torch.OutOfMemoryError("out of memory on purpose")
        return found

    LayerRunner.run = fail_if_asked  # type: ignore[assignment,method-assign]
    stage_child.serve(link)


if __name__ == "__main__":
    main()
