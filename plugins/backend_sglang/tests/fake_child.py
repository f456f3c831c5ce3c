"""A child process without SGLang, which speaks the same messages: its tokens count up from the last of the prompt."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from socket import socket

from parallax_backend_sglang import frames
from parallax_backend_sglang.inbox import Inbox, end_group
from parallax_core.api import EngineInfo

INFO = EngineInfo(
    num_layers=2, vocab_size=1000, context_length=64, max_running=8, max_batch_tokens=64, seed="none", dtype="float32"
)
BROKEN, SLOW, CRASH = 900, 901, 902
"""Last tokens of a prompt for which something else happens."""


def generate(link: socket, asked: frames.Generate) -> None:
    last = asked.prompt[-1]
    if last == CRASH:
        print("Traceback (most recent call last):\nRuntimeError: the device is on fire", flush=True)
        end_group()
    if last == BROKEN:
        link.sendall(frames.pack(frames.Chunks((frames.Chunk(number=asked.number, ended="error", message="broken"),))))
        return
    for place in range(count := asked.sampling["max_new_tokens"]):
        chunk = frames.Chunk(
            number=asked.number,
            tokens=(last + place + 1,),
            cached_tokens=1,
            ended="length" if place == count - 1 else None,
        )
        link.sendall(frames.pack(frames.Chunks((chunk,))))
        if last == SLOW:
            return


def main() -> None:
    print("process", os.getpid(), os.environ["TMPDIR"], flush=True)
    link = socket(fileno=int(sys.argv[1]))
    inbox = Inbox[frames.Frame](link, frames.receive)
    load = inbox.wait()
    assert isinstance(load, frames.LoadEngine)
    print("loading", load.architecture, flush=True)
    match load.architecture:
        case "Refused":
            link.sendall(frames.pack(frames.Failed("no such family", "try another")))
        case "Crashes":
            print("ValueError: no memory", flush=True)
            end_group()
        case "Hangs":
            print("started", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
            time.sleep(600)
    link.sendall(frames.pack(frames.Phase(1)))
    link.sendall(frames.pack(frames.Phase(2)))
    link.sendall(frames.pack(frames.Loaded(INFO)))
    link.sendall(frames.pack(frames.Load(1, 2, 3, 4)))
    while True:
        match inbox.wait():
            case frames.Generate() as message:
                threading.Thread(target=generate, args=[link, message], daemon=True).start()
            case frames.Stop(numbers):
                print("stop", *numbers, flush=True)
                chunk = frames.Chunk(number=0, tokens=numbers, ended="stop")
                link.sendall(frames.pack(frames.Chunks((chunk,))))


if __name__ == "__main__":
    main()
