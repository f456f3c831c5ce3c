"""Nodes of different software count pages alike as long as they say that they do.

Run this file to have the digest printed that belongs to `PAGES_VERSION`; one that is written down never changes.
"""

from __future__ import annotations

import hashlib

import pytest

from parallax_core.api import (
    Account,
    Drop,
    Fork,
    LayerRange,
    Open,
    OutOfPages,
    PagePool,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    Truncate,
    Unsupported,
)
from parallax_core.pages.version import PAGES_VERSION

DIGESTS = {1: "2a90922fd2d8dafd384b0a685f2a22264efcf6c8a6fe3c48407a06fdf79c14b3"}
"""What each version of the rules gives."""

POOLS = (
    PoolInfo(kind="full", page_size=4, num_pages=60),
    PoolInfo(kind="window", page_size=4, num_pages=40, window=7, rewind=3),
    PoolInfo(kind="full", page_size=3, num_pages=70, shares=False),
    PoolInfo(kind="latent", page_size=16, num_pages=30),
    PoolInfo(kind="state", page_size=8, num_pages=12, checkpoint_every=4),
)
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling())
ROUNDS = 4000


class Numbers:
    """Numbers that are the same everywhere (a linear congruential generator, with the constants of MMIX)."""

    def __init__(self) -> None:
        self._state = 1

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit


def act(account: Account, numbers: Numbers, fresh: SeqId) -> None:
    """Do one thing, of those that come up as a head works, or try to."""
    held = list(account.entries)
    seq = held[numbers.below(len(held))] if held else None
    kind = numbers.below(10)
    if seq is None or kind == 0:
        account.edit(Open(fresh, SPEC))
    elif kind == 1:
        account.edit(Fork(seq, fresh, numbers.below(len(account.entries[seq].tokens) + 1)))
    elif kind == 2:
        account.edit(Truncate(seq, numbers.below(len(account.entries[seq].tokens) + 1)))
    elif kind == 3:
        account.edit(Drop(seq))
    else:
        tokens = (1,) * (1 + numbers.below(9 if kind < 6 else 1))
        account.step(StageBatch((Row(seq, len(account.entries[seq].tokens), tokens),)))


def digest_counts() -> str:
    """Return a digest of the free pages after each of many edits and steps, and of what is refused."""
    infos = [
        StageInfo(
            layers=LayerRange(0, 1),
            num_layers=1,
            vocab_size=10,
            context_length=10**6,
            max_batch_tokens=64,
            pools=pools,
            device="",
            dtype="float32",
            weight_bytes=0,
            weights_version="",
        )
        for pools in (POOLS[:1], POOLS[:2], POOLS[2:4], POOLS[4:])
    ]
    seen = hashlib.sha256()
    for info in infos:
        account, numbers = Account(info), Numbers()
        for number in range(ROUNDS):
            try:
                act(account, numbers, SeqId(number))
            except (OutOfPages, Unsupported) as error:
                seen.update(type(error).__name__.encode())
            seen.update(repr(account.free).encode())
    return seen.hexdigest()


def test_pages_are_counted_as_their_version_says() -> None:
    hint = "raise PAGES_VERSION, and write the new digest down beside the others"
    assert DIGESTS.get(PAGES_VERSION) == digest_counts(), hint
    assert len(set(DIGESTS.values())) == len(DIGESTS)


@pytest.mark.parametrize("rule", ["_num_forgettable", "_has_shared_tail"])
def test_digest_shows_that_pages_are_counted_otherwise(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(PagePool, rule, lambda *_: 0)
    assert digest_counts() != DIGESTS[PAGES_VERSION]


if __name__ == "__main__":
    print(PAGES_VERSION, digest_counts())
