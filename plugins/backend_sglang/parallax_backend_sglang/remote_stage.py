"""A stage whose layers SGLang runs in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax_backend_sglang.process import ChildProcess
from parallax_backend_sglang.stage_errors import pack_error, unpack_error
from parallax_backend_sglang.stage_frames import (
    Batch,
    Done,
    Edits,
    Loaded,
    LoadStage,
    Masks,
    Progressed,
    Raised,
    StageFrame,
    pack_batch,
    pack_edits,
    pack_tensor,
    send,
    unpack_result,
    wait,
)
from parallax_core.api import BackendFailed, Edit, MaskSource, Outcome, Progress, StageBatch, StageInfo, StageLost

OPEN_AGAIN = "open the stage again"
SEE_LOG = "the lines of the log that begin with `sglang:` say why"


class RemoteStage:
    """See `parallax_core.api.Stage`. Every call waits for the child process; masks are awaited while it computes.

    Args:
        start_child: starts the child process.
        load: what it loads.
        progress: receives the progress of loading.

    Raises:
        BackendFailed: if the process ends.
        Unsupported: if SGLang cannot run the stage.
        ParallaxError: if files are damaged or missing, or there is too little memory.
    """

    def __init__(self, start_child: Callable[[], ChildProcess], load: LoadStage, progress: Progress) -> None:
        self._child: ChildProcess | None = start_child()
        self._lost = ""
        try:
            self._info = self._load(self._child, load, progress)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `parallax_core.api.Stage.edit`."""
        self._ask(pack_edits(edits))

    def step(self, batch: StageBatch) -> Outcome:
        """Run ``batch``; see `parallax_core.api.Stage.step`."""
        return Outcome(unpack_result(self._ask(pack_batch(batch), batch.masks)))

    def close(self) -> None:
        """End the child process. A second call does nothing."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
            child.link.close()

    def _load(self, child: ChildProcess, load: LoadStage, progress: Progress) -> StageInfo:
        message = _exchange(child, load)
        while isinstance(message, Progressed):
            progress(message.task, message.done, message.total, message.unit)
            message = wait(child.link)
        match message:
            case Loaded(info):
                return info
            case Raised() as raised:
                raise unpack_error(raised)
        raise BackendFailed(child.explain(), SEE_LOG)

    def _ask(self, message: Edits | Batch, masks: MaskSource | None = None) -> Done:
        """Send a message, and the masks that follow it, and return the answer.

        Raises:
            StageLost: if the child process ends, or a call was interrupted, so that the next answer would be its.
        """
        if self._lost:
            raise StageLost(self._lost, OPEN_AGAIN)
        if self._child is None:
            raise BackendFailed("the stage is closed", OPEN_AGAIN)
        try:
            found = _exchange(self._child, message, masks)
        except BaseException as error:
            self._lose(f"a call of the stage was interrupted: {type(error).__name__}")
            raise
        match found:
            case Done():
                return found
            case Raised():
                raise unpack_error(found)
        self._lose(self._child.explain())
        raise StageLost(self._lost, OPEN_AGAIN)

    def _lose(self, reason: str) -> None:
        self._lost = f"the stage is lost: {reason}"
        self.close()


def _exchange(child: ChildProcess, message: StageFrame, masks: MaskSource | None = None) -> StageFrame | None:
    """Send a message, and the masks that follow it; return the answer, or None if the child process has ended."""
    try:
        send(child.link, message)
        if masks is not None:
            send(child.link, _wait_for_masks(masks))
        return wait(child.link)
    except OSError:
        return None


def _wait_for_masks(masks: MaskSource) -> Masks | Raised:
    """Return the message with masks, or with the error that is in their place."""
    try:
        return Masks({number: pack_tensor(mask) for number, mask in masks.wait().items()})
    except BackendFailed as error:
        return pack_error(error)
