"""Which adapters make room for others."""

from __future__ import annotations

import pytest

from parallax_adapters.limits import AdapterLimits, Wish
from parallax_adapters.settings import AdapterSettings
from parallax_core.api import Unavailable
from parallax_core.api.dialect import ServedAdapter


class Room:
    """Loads adapters within limits."""

    def __init__(self, max_adapters: int, max_per_key: int = 0) -> None:
        self.limits = AdapterLimits(AdapterSettings(max_adapters=max_adapters, max_per_key=max_per_key))
        self.loaded: dict[str, ServedAdapter] = {}
        self.running: dict[str, int] = {}

    def load(self, name: str, owner: str = "", *, pins: bool = False) -> list[str]:
        """Make room for an adapter, load it, and return the names of all."""
        wish = Wish(name=name, place="", owner=owner, pins=pins)
        if oldest := self.limits.choose(wish, self.loaded.values(), self.running):
            self.limits.forget(oldest)
            del self.loaded[oldest]
        self.limits.note(wish)
        used = len(self.loaded) + 1.0
        self.loaded[name] = ServedAdapter(name=name, model_id="m", key=f"key of {name}", root="", last_used=used)
        return sorted(self.loaded)


def test_a_key_has_its_limit_and_its_oldest_makes_room() -> None:
    room = Room(max_per_key=2, max_adapters=9)
    room.load("a", "me")
    room.load("b", "me", pins=True)
    room.load("x", "you")
    assert room.load("c", "me") == ["b", "c", "x"]
    assert room.load("c", "me", pins=True) == ["b", "c", "x"], "itself it replaces"
    with pytest.raises(Unavailable, match="all 2 adapters of this key are pinned") as caught:
        room.load("d", "me")
    assert "MAX_PER_KEY" in caught.value.hint
    assert room.load("y", "you") == ["b", "c", "x", "y"]


def test_all_keys_together_have_theirs_and_those_in_use_stay() -> None:
    room = Room(max_adapters=2)
    room.load("a", "me")
    room.load("x", "you")
    room.running["key of a"] = 1
    assert room.load("b", "me") == ["a", "b"]
    room.running["key of b"] = 1
    with pytest.raises(Unavailable, match="all 2 adapters are pinned or in use"):
        room.load("c", "you")
