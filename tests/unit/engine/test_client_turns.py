from __future__ import annotations

import pytest

from parallax_core.engine.client_turns import ClientTurns


def take_all(turns: ClientTurns[int]) -> list[int]:
    taken = []
    while turns:
        taken.append(turns.take())
    return taken


def test_clients_have_turns_however_much_each_asks_for() -> None:
    turns: ClientTurns[int] = ClientTurns()
    for item in range(10):
        turns.add(b"many", item)
    turns.add(b"one", 10)
    turns.add(b"two", 11)
    turns.add(b"two", 12)
    assert take_all(turns) == [0, 10, 11, 1, 12, 2, 3, 4, 5, 6, 7, 8, 9]
    with pytest.raises(KeyError):
        turns.take()


def test_item_that_is_put_back_is_the_next() -> None:
    turns: ClientTurns[int] = ClientTurns()
    for client, item in ((b"a", 1), (b"a", 2), (b"b", 3)):
        turns.add(client, item)
    first, second = turns.take(), turns.take()
    turns.put_back(b"b", second)
    turns.put_back(b"a", first)
    assert take_all(turns) == [1, 3, 2]
