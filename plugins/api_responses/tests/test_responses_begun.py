from __future__ import annotations

import msgspec

from parallax_api_responses.begun import Journal, KeptDelta
from parallax_core.api import Delta, Finish

DELTAS = [
    Delta(text="a", tokens=(1,)),
    Delta(text="bc", tokens=(2, 3)),
    Delta(tokens=(4,), ended="stop", finish=Finish(reason="stop", prompt_tokens=5, output_tokens=4)),
]


async def test_journal_writes_all_deltas_in_order_once_it_is_closed() -> None:
    pieces: list[bytes] = []

    async def append(piece: bytes) -> None:
        pieces.append(piece)

    journal = Journal(append)
    for delta in DELTAS:
        journal.add(delta)
    await journal.close()
    found = [kept.restore() for piece in pieces for kept in msgspec.msgpack.decode(piece, type=list[KeptDelta])]
    assert found == DELTAS
    assert len(pieces) == 1
    await journal.close()
    assert len(pieces) == 1
