"""Keeps the masks that a head sends until the stage's thread asks for those of a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Draw
from parallax_core.contracts.tensor import Tensor
from parallax_core.wire.messages import Mask, Step

MASK_TIMEOUT_S = 30.0
"""Seconds that a step waits for its masks before it fails."""
MOST_BYTES = 2**28
"""The most bytes of masks that are kept."""

StepKey = tuple[int, int]
"""An epoch, and the number of a step in it."""


class MaskMailbox:
    """The masks of one link to a head. The event loop puts them in; the stage's thread waits for those of a step."""

    def __init__(self, timeout_s: float = MASK_TIMEOUT_S, clock: Callable[[], float] = time.perf_counter) -> None:
        self.timeout_s = timeout_s
        self.clock = clock
        self.changed = threading.Condition()
        self._masks: dict[StepKey, dict[tuple[int, int], Tensor]] = {}
        """By step, then by row and output."""
        self._num_bytes = 0
        self._oldest: StepKey = (0, 0)
        """Masks of earlier steps are dropped."""
        self._epoch = 0
        """The newest epoch of which a step has come."""
        self._is_closed = False

    def put(self, mask: Mask) -> None:
        """Keep a mask, unless its step is over.

        Raises:
            StageLost: if the masks kept take too much memory.
        """
        key = mask.epoch, mask.step
        with self.changed:
            if key < self._oldest or mask.epoch < self._epoch:
                return
            self._num_bytes += memoryview(mask.bits.data).nbytes
            if self._num_bytes > MOST_BYTES:
                raise StageLost(f"the head sends masks of more than {MOST_BYTES} bytes")
            self._masks.setdefault(key, {})[mask.row, mask.output] = mask.bits
            self.changed.notify_all()

    def note_step(self, step: Step, *, is_ordered: bool) -> None:
        """Note that a step has come.

        Waits for masks of an older epoch end. If masks come on the same link as steps (``is_ordered``), those kept
        under the step's number are dropped: they belong to an earlier attempt at it, which has failed.
        """
        with self.changed:
            self._epoch = max(self._epoch, step.epoch)
            self._drop(lambda key: key[0] < self._epoch or (is_ordered and key == (step.epoch, step.step)))
            if is_ordered:
                self._oldest = min(self._oldest, (step.epoch, step.step))
            self.changed.notify_all()

    def close(self) -> None:
        """End all waits, now and later."""
        with self.changed:
            self._is_closed = True
            self._masks.clear()
            self.changed.notify_all()

    def find(self, key: StepKey) -> Mapping[tuple[int, int], Tensor]:
        """Return the masks of a step that have come; call it with `changed` held.

        Raises:
            BackendFailed: if no more will come.
        """
        if self._is_closed or key[0] < self._epoch:
            raise BackendFailed("the masks of the step are not sent any more: its head has gone on without it")
        return self._masks.get(key, {})

    def finish(self, key: StepKey) -> None:
        """Drop the masks of a step and of those before it."""
        with self.changed:
            self._oldest = max(self._oldest, (key[0], key[1] + 1))
            self._drop(lambda each: each <= key)

    def _drop(self, is_over: Callable[[StepKey], bool]) -> None:
        for key in [key for key in self._masks if is_over(key)]:
            self._num_bytes -= sum(memoryview(bits.data).nbytes for bits in self._masks.pop(key).values())


class StepMasks:
    """The masks of one step; see `MaskSource`. Measures the time that the stage waits for them."""

    def __init__(self, mailbox: MaskMailbox, step: Step, vocab_size: int) -> None:
        self._mailbox = mailbox
        self._key = step.epoch, step.step
        self._places = dict(_list_places(step))
        self._num_bytes = (vocab_size + 7) // 8
        self._waited_s = 0.0
        self._since: float | None = None

    @property
    def waited_s(self) -> float:
        """Seconds for which the stage has waited, up to now."""
        since = self._since
        return self._waited_s + (max(0.0, self._mailbox.clock() - since) if since is not None else 0.0)

    def wait(self) -> Mapping[int, Tensor]:
        """Return the masks; see `MaskSource.wait`."""
        self._since = self._mailbox.clock()
        try:
            found = self._wait()
        finally:
            self._waited_s, self._since = self.waited_s, None
        for bits in found.values():
            if bits.shape != (self._num_bytes,):
                raise BackendFailed(f"a mask has {bits.shape} bytes, and the vocabulary takes {self._num_bytes}")
        return found

    def close(self) -> None:
        """Drop the masks: the step is over."""
        self._mailbox.finish(self._key)

    def _wait(self) -> Mapping[int, Tensor]:
        mailbox, until = self._mailbox, self._mailbox.clock() + self._mailbox.timeout_s
        with mailbox.changed:
            while True:
                masks = mailbox.find(self._key)
                late = [seq for place, (_, seq) in self._places.items() if place not in masks]
                if not late:
                    return {number: masks[place] for place, (number, _) in self._places.items()}
                if (left := until - mailbox.clock()) <= 0:
                    message = f"the masks of the step have not come within {mailbox.timeout_s:g} s"
                    raise BackendFailed(message, "the log of the head may say why", late)
                mailbox.changed.wait(left)


def find_masks(mailbox: MaskMailbox | None, step: Step, vocab_size: int) -> StepMasks | None:
    """Return the masks that a step waits for; None if it waits for no mask."""
    if not any(isinstance(output, Draw) and output.masked for row in step.rows for output in row.outputs):
        return None
    return StepMasks(mailbox or MaskMailbox(0.0), step, vocab_size)


def _list_places(step: Step) -> list[tuple[tuple[int, int], tuple[int, SeqId]]]:
    """Return for each masked draw its row and output, its number among the outputs of the step, and its sequence."""
    places = ((index, place) for index, row in enumerate(step.rows) for place in range(len(row.outputs)))
    numbered = {each: number for number, each in enumerate(places)}
    return [
        ((index, place), (numbered[index, place], row.seq))
        for index, row in enumerate(step.rows)
        for place, output in enumerate(row.outputs)
        if isinstance(output, Draw) and output.masked
    ]
