"""A typed face over the hooks: one method each, and the only file that names one to call it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pluggy import HookImpl

from parallax_core.base.errors import BrokenPlugin
from parallax_core.config.config import Config
from parallax_core.config.plugins import PluginSettings
from parallax_core.config.schema import list_keys
from parallax_core.contracts.backend import BackendSpec
from parallax_core.contracts.event import Event
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.parser import ParserSpec
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.contracts.setting import Settings, SettingsSpec
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.surface import HttpSurface
from parallax_core.contracts.transport import TransportSpec
from parallax_core.plugins.caller import Caller
from parallax_core.plugins.discovery import PluginRecord, find_disabled, find_plugins, load_plugins, warn_mistyped
from parallax_core.plugins.limit import TimedCall
from parallax_core.plugins.registry import Offer, PluginKind, Registry, Spec
from parallax_core.plugins.sections import PluginConfig, check_sections

S = TypeVar("S", bound=Spec)
H = TypeVar("H", bound=HttpSurface)

DIAGNOSE_S = 60.0
"""How long a plugin may examine the machine."""

logger = logging.getLogger(__name__)


class PluginHost:
    """The plugins of this process. Made once, by the command that needs them, and passed on."""

    def __init__(
        self, plugins: Iterable[tuple[PluginRecord, object | None]], settings: PluginSettings | None = None
    ) -> None:
        self._caller = Caller()
        self._settings = settings or PluginSettings()
        self._offered: dict[str, list[tuple[str, Any]]] = {}
        self._config: PluginConfig | None = None
        for record, module in plugins:
            self.add(record, module)

    @classmethod
    def discover(cls, config: Config | None = None) -> PluginHost:
        """Load every plugin installed in this environment that ``config`` does not disable."""
        config = config or Config.load()
        points, disabled = find_plugins(), find_disabled(config)
        warn_mistyped(disabled, points)
        return cls(load_plugins(points, disabled), config.read("plugins", PluginSettings))

    @classmethod
    def prepare(cls, config: Config | None = None) -> PluginHost:
        """Do the same, and give the plugins their settings; see `configure`."""
        config = config or Config.load()
        host = cls.discover(config)
        host.configure(config)
        return host

    def add(self, record: PluginRecord, module: object | None) -> None:
        """Take in a plugin, and give it its settings if the others have theirs."""
        self._caller.add(record, module)
        self._offered.clear()
        if self._config is not None:
            self._give_settings(self._config, record.key)

    @property
    def records(self) -> list[PluginRecord]:
        """Every plugin found, with its state as far as it is known by now."""
        return self._caller.records

    @property
    def config_file(self) -> Path | None:
        """The configuration file that `configure` was given the contents of; None: there is none."""
        return self._config.file if self._config is not None else None

    def backends(self) -> Registry[BackendSpec]:
        """Return the backends on offer."""
        return self._registry("parallax_register_backends", BackendSpec, PluginKind("backend", "backend"))

    def models(self) -> Registry[ModelSpec]:
        """Return the adapters of model families on offer."""
        return self._registry("parallax_register_models", ModelSpec, PluginKind("model family", "model"))

    def sources(self) -> Registry[SourceSpec]:
        """Return the model sources on offer."""
        return self._registry("parallax_register_sources", SourceSpec, PluginKind("model source", "source"))

    def policies(self, kind: PolicyKind) -> Registry[PolicySpec]:
        """Return the policies of that kind on offer; another kind may use the same names."""
        offers = self._offers("parallax_register_policies", PolicySpec)
        return self._make_registry(
            PluginKind(f"{kind} policy", kind), [each for each in offers if each.spec.kind == kind]
        )

    def transports(self) -> Registry[TransportSpec]:
        """Return the transports on offer."""
        return self._registry("parallax_register_transports", TransportSpec, PluginKind("transport", "transport"))

    def parsers(self) -> Registry[ParserSpec]:
        """Return the parsers of outputs on offer."""
        return self._registry("parallax_register_parsers", ParserSpec, PluginKind("output parser", "parser"))

    def settings(self) -> Registry[SettingsSpec]:
        """Return the sections of the configuration that are declared."""
        return self._registry("parallax_register_settings", SettingsSpec, PluginKind("section", "settings"))

    def configure(self, config: Config) -> None:
        """Check what is configured, and give every plugin its settings.

        Raises:
            ParallaxError: as `check_sections` does. A plugin that raises is broken, and that is logged.
        """
        registry = self.settings()
        check_sections(config, registry, self.records)
        self._config = PluginConfig(config, registry)
        self._give_settings(self._config)

    def read_options(self, offer: Offer[BackendSpec]) -> dict[str, object]:
        """Return the options of a backend, as they are configured here; empty for one without any.

        Raises:
            ParallaxError: if its plugin does not declare the section, or a value in it is invalid.
        """
        if offer.spec.options is None:
            return {}
        found = self._read_settings().section(offer.load(offer.spec.options))
        return {name: getattr(found, name) for name in list_keys(type(found))}

    def select_backend(self, model_config: Mapping[str, Any], available: Sequence[str]) -> str | None:
        """Return the first answer of a plugin to which of the ``available`` backends is to run a model."""
        hook, names = "parallax_select_backend", tuple(available)
        for implementation in reversed(self._caller.find(hook)):  # as pluggy orders those that stop at the first result
            key = implementation.plugin_name
            call = self._caller.bind(implementation, hook, model_config=model_config, available=names)
            match self._caller.attempt(key, call):
                case (str() as name,) if name in names:
                    logger.info("backend %r was chosen by plugin %r", name, self._caller.record(key).name)
                    return name
                case (None,):
                    continue
                case (other,):
                    self._caller.fail(key, ValueError(f"{hook} returned {other!r}, which is none of {list(names)}"))
            self._warn(key)
        return None

    def extend_server(self, open_surface: Callable[[], H]) -> Iterator[tuple[PluginRecord, H]]:
        """Let one plugin after the other add to the server; yield the surfaces of those that did not raise.

        Args:
            open_surface: makes a new one for each plugin, so that one which raises leaves nothing half done.
        """
        hook = "parallax_extend_server"
        for implementation in self._caller.find(hook):
            surface = open_surface()
            key = implementation.plugin_name
            if self._caller.attempt(key, self._caller.bind(implementation, hook, server=surface)):
                yield self._caller.record(key), surface
            else:
                self._warn(key)

    def observers(self) -> list[tuple[PluginRecord, Callable[[Event], object]]]:
        """Return who wants to know of events; what they do with one may take any time, or raise."""
        return [
            (self._caller.record(each.plugin_name), partial(self._tell, each))
            for each in self._caller.find("parallax_observe")
        ]

    def diagnose(self) -> Iterator[tuple[PluginRecord, Finding]]:
        """Yield what each plugin has to say about this machine; one that raises, or takes too long, is broken."""
        config = self._read_settings()
        for key, finding in self._caller.collect("parallax_diagnose", Finding, DIAGNOSE_S, config=config):
            yield self._caller.record(key), finding

    def shutdown(self, limit_s: float) -> None:
        """Tell every plugin that this is the end, all at once, and wait for them ``limit_s`` seconds together."""
        hook, deadline = "parallax_shutdown", time.monotonic() + limit_s
        errands = [(each.plugin_name, TimedCall(self._caller.bind(each, hook))) for each in self._caller.find(hook)]
        for key, errand in errands:
            wait = partial(errand.wait, max(0.0, deadline - time.monotonic()))
            if not self._caller.attempt(key, wait, is_quiet=False):
                self._warn(key)

    def require_all(self) -> None:
        """Ask every plugin for what it offers, and refuse to go on without one that is not disabled.

        Raises:
            BrokenPlugin: naming all that are broken or incompatible.
        """
        self.list_registries()
        missing = [record for record in self.records if record.state in {"broken", "incompatible"}]
        if missing:
            said = "; ".join(f"{each.name!r} ({each.origin}) is {each.state}: {each.reason}" for each in missing)
            message = f"{len(missing)} of {len(self.records)} plugins are not loaded: {said}"
            raise BrokenPlugin(message, "; ".join(dict.fromkeys(each.remedy for each in missing)))

    def list_registries(self) -> dict[str, Registry[Any]]:
        """Return everything on offer, by what ``parallax plugins`` calls it."""
        return {
            "backends": self.backends(),
            "models": self.models(),
            "sources": self.sources(),
            "transports": self.transports(),
            "parsers": self.parsers(),
            **{kind: self.policies(kind) for kind in get_args(PolicyKind)},
            "settings": self.settings(),
        }

    def _tell(self, implementation: HookImpl, event: Event) -> None:
        self._caller.bind(implementation, "parallax_observe", event=event)()

    def _read_settings(self) -> PluginConfig:
        """Return the settings of plugins; the defaults before `configure`."""
        return self._config or PluginConfig(Config(), self.settings())

    def _give_settings(self, config: Settings, only: str = "") -> None:
        hook = "parallax_configure"
        for implementation in self._caller.find(hook):
            key = implementation.plugin_name
            if only in {"", key} and not self._caller.attempt(
                key, self._caller.bind(implementation, hook, config=config)
            ):
                self._warn(key)

    def _registry(self, hook: str, spec: type[S], kind: PluginKind) -> Registry[S]:
        return self._make_registry(kind, self._offers(hook, spec))

    def _make_registry(self, kind: PluginKind, offers: Sequence[Offer[S]]) -> Registry[S]:
        return Registry(kind, offers, self.records, self._settings.prefer.get(kind.key))

    def _offers(self, hook: str, spec: type[S]) -> list[Offer[S]]:
        """Return what plugins that are well offer; each is asked once."""
        if hook not in self._offered:
            self._offered[hook] = list(self._caller.collect(hook, spec))
        offered: list[tuple[str, S]] = self._offered[hook]
        return [Offer(each, self._caller.record(key)) for key, each in offered if self._caller.is_well(key)]

    def _warn(self, key: str) -> None:
        record = self._caller.record(key)
        logger.warning("plugin %r (%s) is %s: %s", record.name, record.origin, record.state, record.reason)
