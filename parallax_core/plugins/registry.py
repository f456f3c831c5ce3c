"""What plugins offer of one kind, looked up by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, Protocol, TypeVar

from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName
from parallax_core.base.refs import Ref
from parallax_core.plugins.discovery import DISABLED_VARIABLE, PluginRecord


class Spec(Protocol):
    """What every spec has."""

    @property
    def name(self) -> str:
        """What users write to ask for it."""

    @property
    def summary(self) -> str:
        """One line that says what it is."""

    @property
    def remedy(self) -> str:
        """What to do when one of its Refs cannot be imported."""


S = TypeVar("S", bound=Spec)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer(Generic[S]):
    """A spec, and the plugin it came from."""

    spec: S
    plugin: PluginRecord

    def load(self, ref: Ref[T]) -> T:
        """Import an object the spec names.

        Raises:
            BrokenPlugin: naming the distribution and what its import raised.
        """
        try:
            return ref.load()
        except Exception as error:
            message = f"{self.spec.name!r} of {self.plugin.origin} cannot be loaded: {type(error).__name__}: {error}"
            raise BrokenPlugin(message, self.spec.remedy or self.plugin.remedy) from error


class Registry(Generic[S]):
    """All offers of one kind, such as "backend"."""

    def __init__(self, kind: str, offers: Sequence[Offer[S]], records: Sequence[PluginRecord]) -> None:
        self.kind = kind
        self.offers = tuple(offers)
        self._records = tuple(records)

    def names(self) -> list[str]:
        """Return every offered name once, sorted."""
        return sorted({offer.spec.name for offer in self.offers})

    def get(self, name: str) -> Offer[S]:
        """Return the one offer of ``name``.

        Raises:
            UnknownName: if nobody offers it; the hint says which plugins could not be loaded, and why.
            PluginConflict: if several plugins do.
        """
        found = [offer for offer in self.offers if offer.spec.name == name]
        if not found:
            message = f"no {self.kind} named {name!r}"
            raise UnknownName(message, self._suggestion(name))
        if len(found) > 1:
            raise self._conflict(found)
        return found[0]

    def _conflict(self, found: Sequence[Offer[S]]) -> PluginConflict:
        origins = " and ".join(offer.plugin.origin for offer in found)
        message = f"{self.kind} {found[0].spec.name!r} is offered by both {origins}"
        return PluginConflict(message, f"keep one: {DISABLED_VARIABLE}={found[-1].plugin.distribution}")

    def _suggestion(self, name: str) -> str:
        near = get_close_matches(name, self.names(), n=1)
        known = f"there is: {', '.join(self.names())}." if self.offers else f"no installed plugin offers a {self.kind}."
        parts = [f"did you mean {near[0]!r}?" if near else known]
        parts += [
            f"plugin {record.name!r} ({record.origin}) is {record.state}: {record.reason}. {record.remedy}."
            for record in self._records
            if record.state != "loaded"
        ]
        return " ".join(parts)
