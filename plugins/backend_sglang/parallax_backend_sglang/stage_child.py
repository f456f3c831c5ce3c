"""The child process of a stage: ``python -m parallax_backend_sglang.stage_child FD``, a socket."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from parallax_backend_sglang import compat
from parallax_backend_sglang.compat_runtime import StageRank, list_interface
from parallax_backend_sglang.compat_stage import STAGE, LayerRunner
from parallax_backend_sglang.inbox import Inbox, end_group
from parallax_backend_sglang.stage import SglangStage
from parallax_backend_sglang.stage_errors import pack_error, unpack_error
from parallax_backend_sglang.stage_frames import (
    EDITS,
    Batch,
    Done,
    Edits,
    Loaded,
    LoadStage,
    Masks,
    Progressed,
    Raised,
    StageFrame,
    pack_result,
    send,
    unpack_batch,
    unpack_tensor,
    wait,
)
from parallax_core.api import BackendFailed, ParallaxError, StageInfo, Tensor, Unit, find_missing
from parallax_sampling_torch.stage_weights import StageWeights

STARTING = "starting SGLang"
"""The task of which progress is reported until SGLang can load layers."""
TOO_FULL = "close other programs, or lower memory_fraction"


def main() -> None:
    """Load a stage and run it until the parent process closes the socket."""
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(link: socket.socket) -> None:
    """Serve the other end of ``link`` until it closes, which ends this process at once."""
    inbox = Inbox[StageFrame](link, wait)
    try:
        message = inbox.wait()
        assert isinstance(message, LoadStage), "the first message says what to load"
        stage = load_stage(link, message)
        send(link, Loaded(stage.info))
        while True:
            send(link, answer(stage, inbox, inbox.wait()))
    except Exception as error:
        with contextlib.suppress(OSError):
            send(link, pack_error(error))
        if not isinstance(error, ParallaxError):
            raise
    finally:
        end_group()


def load_stage(link: socket.socket, message: LoadStage) -> SglangStage:
    """Load the layers of a stage, and report the progress over ``link``.

    Raises:
        Unsupported: if SGLang lacks what is used, or cannot split the family.
        ParallaxError: if files are damaged or missing, or there is too little memory.
    """

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        send(link, Progressed(task, done, total, unit))

    report(STARTING, 0, 1, "items")
    compat.check_interface(compat.ENGINE)
    compat.check_interface({**list_interface(), **STAGE})
    compat.check_architecture(message.architecture)
    report(STARTING, 1, 1, "items")
    info, model = message.info, Path(message.model)
    weights = StageWeights(model, report, info.layers, info.num_layers, find_missing(model))
    runner = LayerRunner(message.arguments, StageRank(info.layers, info.num_layers), weights)
    return SglangStage(fit_pages(replace(info, weight_bytes=runner.weight_bytes), runner.num_slots), runner)


def fit_pages(info: StageInfo, num_slots: int) -> StageInfo:
    """Return the properties of a stage with as many pages as fit into the slots that SGLang has made.

    Raises:
        ParallaxError: if not even one fits.
    """
    [pool] = info.pools
    num_pages = min(pool.num_pages, num_slots // pool.page_size)
    if not num_pages:
        raise ParallaxError(f"SGLang has memory for {num_slots} tokens in the KV cache", TOO_FULL)
    return replace(info, pools=(replace(pool, num_pages=num_pages),))


class LinkMasks:
    """The masks of the step that runs, which follow its message; a `MaskSource`."""

    def __init__(self, inbox: Inbox[StageFrame]) -> None:
        self._inbox = inbox
        self._has_come = False

    def wait(self) -> Mapping[int, Tensor]:
        """Return the masks."""
        message, self._has_come = self._inbox.wait(), True
        match message:
            case Masks(masks):
                return {number: unpack_tensor(mask) for number, mask in masks.items()}
            case Raised():
                raise unpack_error(message)
        raise BackendFailed(f"a {type(message).__name__} came in place of masks")

    def discard(self) -> None:
        """Take the masks from the link if the step has not waited for them."""
        if not self._has_come:
            self._inbox.wait()


def answer(stage: SglangStage, inbox: Inbox[StageFrame], message: StageFrame) -> Done | Raised:
    """Do what a message asks for, and return the answer to it."""
    masks = LinkMasks(inbox) if isinstance(message, Batch) and message.has_masks else None
    try:
        match message:
            case Edits(edits):
                stage.edit(EDITS.decode(edits))
            case Batch():
                return pack_result(stage.step(unpack_batch(message, masks)).wait())
    except Exception as error:  # noqa: BLE001 -- the parent raises it
        return pack_error(error)
    finally:
        if masks is not None:
            masks.discard()
    return Done()


if __name__ == "__main__":
    main()
