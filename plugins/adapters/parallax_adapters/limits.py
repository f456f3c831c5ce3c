"""Limits how many adapters are loaded, and chooses those that make room for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from parallax_adapters.settings import AdapterSettings
from parallax_core.api import Unavailable
from parallax_core.api.dialect import ServedAdapter


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What an administrator wants to be loaded."""

    name: str
    """What clients will call it."""
    place: str
    """Its folder, or its name on a hub."""
    base: str = ""
    """A name of the model that it is for; empty: the main model."""
    replaces: bool = False
    """Whether an adapter of that name may be replaced."""
    pins: bool = False
    """Whether it is never unloaded to make room for others."""
    owner: str = ""
    """Whose it is, for the limit per key."""


class AdapterLimits:
    """Keeps the owners of adapters, and those that are pinned.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: AdapterSettings) -> None:
        self._settings = settings
        self._wishes: dict[str, Wish] = {}

    def note(self, wish: Wish) -> None:
        """Note that an adapter is loaded."""
        self._wishes[wish.name] = wish

    def forget(self, name: str) -> None:
        """Note that an adapter is not loaded any more."""
        self._wishes.pop(name, None)

    def choose(self, wish: Wish, loaded: Collection[ServedAdapter], running: Mapping[str, int]) -> str:
        """Return the least recently used adapter if it has to make room; empty if there is room.

        Args:
            wish: what is to be loaded.
            loaded: the adapters that are.
            running: the running requests, by the key of their adapter.

        Raises:
            Unavailable: if all are pinned or in use.
        """
        others = [each for each in loaded if each.name != wish.name]
        own = [each for each in others if (other := self._wishes.get(each.name)) and other.owner == wish.owner]
        if 0 < self._settings.max_per_key <= len(own):
            return self._find_oldest(own, running, "adapters of this key", "PARALLAX_ADAPTERS__MAX_PER_KEY")
        if len(others) >= self._settings.max_adapters:
            return self._find_oldest(others, running, "adapters", "PARALLAX_ADAPTERS__MAX_ADAPTERS")
        return ""

    def _find_oldest(self, some: Collection[ServedAdapter], running: Mapping[str, int], what: str, setting: str) -> str:
        pinned = {name for name, wish in self._wishes.items() if wish.pins}
        free = [each for each in some if each.name not in pinned and not running.get(each.key)]
        if not free:
            message = f"all {len(some)} {what} are pinned or in use, and no more may be loaded"
            raise Unavailable(message, f"unload one, or allow more with {setting}")
        return min(free, key=lambda each: each.last_used).name
