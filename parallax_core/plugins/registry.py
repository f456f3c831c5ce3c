"""Looks up what plugins offer of one kind, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, Protocol, TypeVar

from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName
from parallax_core.base.refs import Ref
from parallax_core.config.plugins import OfferKind
from parallax_core.plugins.discovery import DISABLED_VARIABLE, PluginRecord
from parallax_core.plugins.remedy import describe_error, find_remedy, normalize


class Spec(Protocol):
    """The fields that every spec has."""

    @property
    def name(self) -> str:
        """The name by which users select it."""

    @property
    def summary(self) -> str:
        """A description in one line."""

    @property
    def remedy(self) -> str:
        """What to do if one of its Refs cannot be imported."""


S = TypeVar("S", bound=Spec)
T = TypeVar("T")

MOST_EXPLAINED = 3
"""The most plugins whose failure a hint explains; of more, it lists only the names."""


@dataclass(frozen=True, slots=True)
class Offer(Generic[S]):
    """A spec, with the plugin that offers it."""

    spec: S
    plugin: PluginRecord

    def load(self, ref: Ref[T]) -> T:
        """Import an object that the spec names.

        Raises:
            BrokenPlugin: if the import fails; the message names the distribution and the error.
        """
        try:
            return ref.load()
        except (Exception, SystemExit) as error:
            message = f"{self.spec.name!r} of {self.plugin.origin} cannot be loaded: {describe_error(error)}"
            remedy = self.spec.remedy or find_remedy(error, self.plugin.distribution, self.plugin.module)
            raise BrokenPlugin(message, remedy) from error


@dataclass(frozen=True, slots=True)
class PluginKind:
    """The kind of things in a registry, such as backends."""

    title: str
    """The name in messages, such as ``model source``."""
    key: OfferKind
    """The name in ``[plugins] prefer``, such as ``source``."""


DISTRIBUTIONS = {
    "backend mlx": "parallax-backend-mlx",
    "backend sglang": "parallax-backend-sglang",
    "backend torch": "parallax-backend-torch",
    "backend vllm": "parallax-backend-vllm",
    **{f"batching {name}": "parallax-policies" for name in ("size", "delay", "size-or-delay")},
    "deployment found": "parallax-cluster",
    "deployment joined": "parallax-cluster",
    "deployment planned": "parallax-cluster",
    **{f"preemption {name}": "parallax-policies" for name in ("newest-first", "none")},
    "replica engine": "parallax-engines",
    **{f"routing {name}": "parallax-policies" for name in ("round-robin", "prefix-affinity", "least-finish-time")},
    **{f"scheduling {name}": "parallax-policies" for name in ("shortest-first", "fair-by-key")},
    "source gguf": "parallax-source-pypi",
    "source hf": "parallax-source-hub",
    "source ollama": "parallax-source-hub",
    "source pypi": "parallax-source-pypi",
    "transport lattica": "parallax-transport-lattica",
    "transport zmq": "parallax-transport-zmq",
}
"""The distributions of this project that offer a name, which a user may not have installed."""


class Registry(Generic[S]):
    """All offers of one kind.

    If a distribution is preferred for a name, the other offers of that name are in ``passed``, not in ``offers``.
    """

    def __init__(
        self,
        kind: PluginKind,
        offers: Sequence[Offer[S]],
        records: Sequence[PluginRecord],
        prefer: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.passed = tuple(_find_passed(offers, prefer or {}))
        self.offers = tuple(offer for offer in offers if offer not in self.passed)
        self._records = tuple(records)

    def names(self) -> list[str]:
        """Return every offered name once, sorted."""
        return sorted({offer.spec.name for offer in self.offers})

    def get(self, name: str) -> Offer[S]:
        """Return the only offer of ``name``.

        Raises:
            UnknownName: if no plugin offers it; the hint says which plugins could not be loaded, and why.
            PluginConflict: if several plugins offer it and none is preferred.
        """
        found = [offer for offer in self.offers if offer.spec.name == name]
        if not found:
            message = f"no {self.kind.title} named {name!r}"
            raise UnknownName(message, self._suggestion(name))
        if len(found) > 1:
            raise self._conflict(found)
        return found[0]

    def conflicts(self) -> dict[str, PluginConflict]:
        """Return the error for each name that several plugins offer and none is preferred for."""
        found = {name: [offer for offer in self.offers if offer.spec.name == name] for name in self.names()}
        return {name: self._conflict(offers) for name, offers in found.items() if len(offers) > 1}

    def _conflict(self, found: Sequence[Offer[S]]) -> PluginConflict:
        name, distribution = found[0].spec.name, found[-1].plugin.distribution
        origins = " and ".join(offer.plugin.origin for offer in found)
        message = f"{self.kind.title} {name!r} is offered by both {origins}"
        prefer = f'prefer.{self.kind.key}.{name} = "{found[0].plugin.distribution}"'
        hint = f"choose one, with {prefer} in [plugins] of parallax.toml, or with {DISABLED_VARIABLE}={distribution}"
        return PluginConflict(message, hint)

    def _suggestion(self, name: str) -> str:
        missing = [record for record in self._records if record.state != "loaded"]
        near = get_close_matches(name, [*self.names(), *(record.name for record in missing)], n=1)
        none = f"no installed plugin offers a {self.kind.title}."
        known = f"there is: {', '.join(self.names())}." if self.offers else none
        guess = f"did you mean {near[0]!r}?" if near else known
        if distribution := DISTRIBUTIONS.get(f"{self.kind.key} {name}"):
            guess = f"install it with `pip install {distribution}`; {known}"
        own = [record for record in missing if record.name in near]
        return " ".join([*([] if name in near else [guess]), _explain(own or missing)]).strip()


def _explain(records: Sequence[PluginRecord]) -> str:
    """Explain why plugins are not loaded; of many, list only the names."""
    if len(records) > MOST_EXPLAINED:
        names = ", ".join(record.name for record in records)
        return f"plugins that are not loaded might offer it: {names}. `parallax plugins` shows why."
    return " ".join(
        f"plugin {record.name!r} ({record.origin}) is {record.state}: {record.reason}. {record.remedy}."
        for record in records
    )


def _find_passed(offers: Sequence[Offer[S]], prefer: Mapping[str, str]) -> Iterator[Offer[S]]:
    """Yield the offers of names for which another offer's distribution is preferred."""
    for name, distribution in prefer.items():
        same = [offer for offer in offers if offer.spec.name == name]
        wins = [offer for offer in same if normalize(offer.plugin.distribution) == normalize(distribution)]
        if wins:
            yield from (offer for offer in same if offer not in wins)
