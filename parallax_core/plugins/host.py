"""A typed face over pluggy: one method per hook, and the only file that calls one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

import pluggy

from parallax_core import hookspecs
from parallax_core.contracts.backend import BackendSpec
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.transport import TransportSpec
from parallax_core.plugins.discovery import PluginRecord, broken, find_plugins, load_plugins
from parallax_core.plugins.registry import Offer, Registry, Spec

S = TypeVar("S", bound=Spec)
T = TypeVar("T")


class PluginHost:
    """The plugins of this process. Made once, by the command that needs them, and passed on."""

    def __init__(self, plugins: Iterable[tuple[PluginRecord, object | None]]) -> None:
        self._manager = pluggy.PluginManager("parallax")
        self._manager.add_hookspecs(hookspecs)
        self._records: dict[str, PluginRecord] = {}
        for record, module in plugins:
            self._add(record, module)

    @classmethod
    def discover(cls) -> PluginHost:
        """Load every plugin installed in this environment."""
        return cls(load_plugins(find_plugins()))

    @property
    def records(self) -> list[PluginRecord]:
        """Every plugin found, with its state as far as it is known by now."""
        return list(self._records.values())

    def backends(self) -> Registry[BackendSpec]:
        """Return the backends on offer."""
        return self._registry("backend", self._manager.hook.parallax_register_backends, BackendSpec)

    def models(self) -> Registry[ModelSpec]:
        """Return the adapters of model families on offer."""
        return self._registry("model family", self._manager.hook.parallax_register_models, ModelSpec)

    def sources(self) -> Registry[SourceSpec]:
        """Return the model sources on offer."""
        return self._registry("model source", self._manager.hook.parallax_register_sources, SourceSpec)

    def policies(self, kind: PolicyKind) -> Registry[PolicySpec]:
        """Return the policies of that kind on offer; another kind may use the same names."""
        offered = self._registry("policy", self._manager.hook.parallax_register_policies, PolicySpec).offers
        return Registry(f"{kind} policy", [offer for offer in offered if offer.spec.kind == kind], self.records)

    def transports(self) -> Registry[TransportSpec]:
        """Return the transports on offer."""
        return self._registry("transport", self._manager.hook.parallax_register_transports, TransportSpec)

    def diagnose(self) -> list[tuple[PluginRecord, Finding]]:
        """Return what each plugin has to say about this machine; a plugin that raises is itself a finding."""
        return list(self._ask(self._manager.hook.parallax_diagnose, Finding))

    def _add(self, record: PluginRecord, module: object | None) -> None:
        key = f"{record.distribution}:{record.name}"
        if module is not None:
            try:
                self._manager.register(module, name=key)
                self._refuse_unknown_hooks(module)
            except (pluggy.PluginValidationError, ValueError) as error:
                record = broken(record, error)
                if self._manager.has_plugin(key):
                    self._manager.unregister(name=key)
        self._records[key] = record

    def _refuse_unknown_hooks(self, module: object) -> None:
        for caller in self._manager.get_hookcallers(module) or ():
            if not caller.has_spec():
                message = f"implements {caller.name}, which is no hook of plugin API {hookspecs.PLUGIN_API}"
                raise ValueError(message)

    def _registry(self, kind: str, hook: pluggy.HookCaller, spec: type[S]) -> Registry[S]:
        return Registry(kind, [Offer(each, record) for record, each in self._ask(hook, spec)], self.records)

    def _ask(self, hook: pluggy.HookCaller, kind: type[T]) -> Iterator[tuple[PluginRecord, T]]:
        """Call each implementation by itself, so that every answer has a plugin and one failure stays alone."""
        for implementation in hook.get_hookimpls():
            key = implementation.plugin_name
            for answer in self._call(key, implementation.function):
                if not isinstance(answer, kind):
                    self._fail(key, TypeError(f"{hook.name} returned {answer!r}"))
                    break
                yield self._records[key], answer

    def _call(self, key: str, function: Callable[..., object]) -> list[object]:
        try:
            return list(cast("Iterable[object]", function()))
        except Exception as error:  # noqa: BLE001 -- a plugin may raise anything, and must not harm the others
            self._fail(key, error)
            return []

    def _fail(self, key: str, error: Exception) -> None:
        self._records[key] = broken(self._records[key], error)
