from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from parallax_core.api import BackendFailed, Draw, Epoch, Row, Score, SeqId, Tensor
from parallax_core.base.errors import StageLost
from parallax_core.node.worker import mask_mailbox
from parallax_core.node.worker.mask_mailbox import MaskMailbox, StepMasks, find_masks
from parallax_core.wire.messages import Mask, Step

VOCAB = 12
MASKED = Draw(0, masked=True)
ROWS = (Row(SeqId(7), 4, (1,), (MASKED,)), Row(SeqId(8), 0, (2,), (Score(0, 1), MASKED, Draw(0))))


def make_step(number: int = 1, epoch: int = 0, rows: tuple[Row, ...] = ROWS) -> Step:
    return Step(Epoch(epoch), number, rows=rows)


def make_mask(row: int, output: int, bits: bytes = b"\x01\x02", step: int = 1, epoch: int = 0) -> Mask:
    return Mask(Epoch(epoch), step, row, Tensor("uint8", (len(bits),), bits), output)


def find(mailbox: MaskMailbox, step: Step | None = None) -> StepMasks:
    masks = find_masks(mailbox, step or make_step(), VOCAB)
    assert masks is not None
    return masks


def wait_aside(masks: StepMasks) -> Future[Mapping[int, Tensor]]:
    """Wait on another thread, as a stage does."""
    pool = ThreadPoolExecutor(1)
    waiting = pool.submit(masks.wait)
    pool.shutdown(wait=False)
    return waiting


def test_masks_are_found_by_the_number_of_their_draw() -> None:
    mailbox = MaskMailbox()
    mailbox.put(make_mask(1, 1, b"\x03\x00"))
    mailbox.put(make_mask(0, 0, b"\x01\x00"))
    assert {number: bytes(bits.data) for number, bits in find(mailbox).wait().items()} == {
        0: b"\x01\x00",
        2: b"\x03\x00",
    }


def test_step_without_masked_draws_waits_for_no_mask() -> None:
    assert find_masks(MaskMailbox(), make_step(rows=(Row(SeqId(7), 0, (1,), (Draw(0),)),)), VOCAB) is None


def test_stage_waits_for_a_late_mask_and_measures_it() -> None:
    mailbox = MaskMailbox(timeout_s=20.0)
    masks = find(mailbox)
    waiting = wait_aside(masks)
    mailbox.put(make_mask(0, 0))
    while not masks.waited_s:
        threading.Event().wait(0.001)
    assert not waiting.done()
    mailbox.put(make_mask(1, 1))
    assert len(waiting.result(20)) == 2
    assert masks.waited_s > 0


def test_missing_masks_name_the_sequences_that_wait() -> None:
    mailbox = MaskMailbox(timeout_s=0.01)
    mailbox.put(make_mask(0, 0))
    with pytest.raises(BackendFailed, match=r"have not come within 0\.01 s") as late:
        find(mailbox).wait()
    assert late.value.sequences == (SeqId(8),)


@pytest.mark.parametrize("other", [{"step": 2}, {"epoch": 1}, {"row": 2}, {"output": 3}])
def test_masks_of_another_step_or_draw_are_not_taken(other: dict[str, Any]) -> None:
    mailbox = MaskMailbox(timeout_s=0.01)
    for row, output in ((0, 0), (1, 1)):
        mailbox.put(make_mask(**{"row": row, "output": output, **other}))
    with pytest.raises(BackendFailed, match="have not come"):
        find(mailbox).wait()


def test_masks_of_a_failed_attempt_are_not_taken_by_the_next() -> None:
    mailbox = MaskMailbox(timeout_s=0.01)
    mailbox.note_step(make_step(), is_ordered=True)
    for row, output in ((0, 0), (1, 1)):
        mailbox.put(make_mask(row, output))
    find(mailbox).close()
    for row, output in ((0, 0), (1, 1)):
        mailbox.put(make_mask(row, output))
    mailbox.note_step(make_step(), is_ordered=True)
    with pytest.raises(BackendFailed, match="have not come"):
        find(mailbox).wait()
    for row, output in ((0, 0), (1, 1)):
        mailbox.put(make_mask(row, output))
    assert len(find(mailbox).wait()) == 2


def test_masks_may_come_before_their_step_on_a_link_of_their_own() -> None:
    mailbox = MaskMailbox(timeout_s=0.01)
    for row, output in ((0, 0), (1, 1)):
        mailbox.put(make_mask(row, output))
    mailbox.note_step(make_step(), is_ordered=False)
    assert len(find(mailbox).wait()) == 2


@pytest.mark.parametrize("end", ["close", "epoch"])
def test_wait_ends_when_no_mask_can_come_any_more(end: str) -> None:
    mailbox = MaskMailbox(timeout_s=20.0)
    masks = find(mailbox)
    waiting = wait_aside(masks)
    if end == "close":
        mailbox.close()
    else:
        mailbox.note_step(make_step(epoch=1), is_ordered=False)
    with pytest.raises(BackendFailed, match="not sent any more"):
        waiting.result(20)


def test_mask_of_another_size_fails_the_step() -> None:
    mailbox = MaskMailbox()
    mailbox.put(make_mask(0, 0, b"\x01"))
    mailbox.put(make_mask(1, 1))
    with pytest.raises(BackendFailed, match="takes 2"):
        find(mailbox).wait()


def test_masks_kept_are_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_mailbox, "MOST_BYTES", 8)
    mailbox = MaskMailbox()
    for step in range(1, 20):
        mailbox.put(make_mask(0, 0, step=step))
        mailbox.put(make_mask(1, 1, step=step))
        find(mailbox, make_step(step)).close()
    for step in range(20, 24):
        mailbox.put(make_mask(0, 0, step=step))
    with pytest.raises(StageLost, match="more than 8 bytes"):
        mailbox.put(make_mask(0, 0, step=24))
