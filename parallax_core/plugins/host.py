"""A typed interface to the hooks, with one method each; the only module that calls hooks by name."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pluggy import HookImpl

from parallax_core.base.errors import BrokenPlugin, ParallaxError
from parallax_core.config.config import Config
from parallax_core.config.plugins import PluginSettings
from parallax_core.config.schema import list_keys
from parallax_core.contracts.backend import BackendPython, BackendSpec
from parallax_core.contracts.deployment import DeploymentSpec
from parallax_core.contracts.dialect import Dialect, DialectSpec
from parallax_core.contracts.event import Event
from parallax_core.contracts.finding import Finding
from parallax_core.contracts.model import ModelSpec
from parallax_core.contracts.node_service import NodeServiceSpec
from parallax_core.contracts.page import PageServer
from parallax_core.contracts.parser import ParserSpec
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.contracts.replica import ReplicaSpec
from parallax_core.contracts.setting import Settings, SettingsSpec, ShownSetting
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.surface import HttpSurface
from parallax_core.contracts.transport import TransportSpec
from parallax_core.plugins.caller import Caller
from parallax_core.plugins.discovery import PluginRecord, find_disabled, find_plugins, load_plugins, warn_mistyped
from parallax_core.plugins.limit import TimedCall
from parallax_core.plugins.registry import Offer, PluginKind, Registry, Spec
from parallax_core.plugins.sections import PluginConfig, check_sections, find_section

S = TypeVar("S", bound=Spec)
T = TypeVar("T")
H = TypeVar("H", bound=HttpSurface)

OpenDialect = Callable[[Any, Any], Dialect]

EXTENDING = (
    "parallax_select_backend",
    "parallax_find_python",
    "parallax_serve_pages",
    "parallax_extend_server",
    "parallax_observe",
)
DIAGNOSE_S = 60.0
"""The most seconds a plugin may take for ``parallax doctor``."""

logger = logging.getLogger(__name__)


class PluginHost:
    """The plugins of this process. The command that needs them creates it once and passes it on."""

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
        """Load the plugins as `discover` does, and give them their settings; see `configure`."""
        config = config or Config.load()
        host = cls.discover(config)
        host.configure(config)
        return host

    def add(self, record: PluginRecord, module: object | None) -> None:
        """Add a plugin, and give it its settings if the others have theirs already."""
        self._caller.add(record, module)
        self._offered.clear()
        if self._config is not None:
            self._give_settings(self._config, record.key)

    @property
    def records(self) -> list[PluginRecord]:
        """Every plugin found, with its current state."""
        return self._caller.records

    @property
    def config_file(self) -> Path | None:
        """The configuration file in use; None: no file."""
        return self._config.file if self._config is not None else None

    def backends(self) -> Registry[BackendSpec]:
        """Return the backends offered by plugins."""
        return self._registry("parallax_register_backends", BackendSpec, PluginKind("backend", "backend"))

    def models(self) -> Registry[ModelSpec]:
        """Return the adapters of model families offered by plugins."""
        return self._registry("parallax_register_models", ModelSpec, PluginKind("model family", "model"))

    def sources(self) -> Registry[SourceSpec]:
        """Return the model sources offered by plugins."""
        return self._registry("parallax_register_sources", SourceSpec, PluginKind("model source", "source"))

    def policies(self, kind: PolicyKind) -> Registry[PolicySpec]:
        """Return the policies of a kind offered by plugins; another kind may use the same names."""
        offers = self._offers("parallax_register_policies", PolicySpec)
        return self._make_registry(
            PluginKind(f"{kind} policy", kind), [each for each in offers if each.spec.kind == kind]
        )

    def transports(self) -> Registry[TransportSpec]:
        """Return the transports offered by plugins."""
        return self._registry("parallax_register_transports", TransportSpec, PluginKind("transport", "transport"))

    def parsers(self) -> Registry[ParserSpec]:
        """Return the parsers of outputs offered by plugins."""
        return self._registry("parallax_register_parsers", ParserSpec, PluginKind("output parser", "parser"))

    def dialects(self) -> Registry[DialectSpec]:
        """Return the API dialects offered by plugins."""
        return self._registry("parallax_register_dialects", DialectSpec, PluginKind("API dialect", "dialect"))

    def deployments(self) -> Registry[DeploymentSpec]:
        """Return the kinds of deployments offered by plugins."""
        return self._registry("parallax_register_deployments", DeploymentSpec, PluginKind("deployment", "deployment"))

    def settings(self) -> Registry[SettingsSpec]:
        """Return the sections of the configuration declared by plugins."""
        return self._registry("parallax_register_settings", SettingsSpec, PluginKind("section", "settings"))

    def node_services(self) -> Registry[NodeServiceSpec]:
        """Return the services of nodes offered by plugins."""
        return self._registry(
            "parallax_register_node_services", NodeServiceSpec, PluginKind("node service", "node_service")
        )

    def replicas(self) -> Registry[ReplicaSpec]:
        """Return the kinds of replicas offered by plugins."""
        return self._registry("parallax_register_replicas", ReplicaSpec, PluginKind("kind of replicas", "replica"))

    def configure(self, config: Config) -> None:
        """Check the configuration and give every plugin its settings.

        Raises:
            ParallaxError: as `check_sections` does. A plugin that raises counts as broken, which is logged.
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

    def read_section(self, schema: type[T]) -> T:
        """Return a section of the configuration as it is configured here.

        Raises:
            ParallaxError: if no plugin declares it, or a value in it is invalid.
        """
        return self._read_settings().section(schema)

    def explain_settings(self, section: str | None = None) -> list[ShownSetting]:
        """Return every setting of a section, or of all sections, core's first; see `Settings.explain`."""
        return self._read_settings().explain(section)

    def find_section(self, offer: Offer[BackendSpec]) -> str:
        """Return the section of the configuration that holds the options of a backend; empty for one without any.

        Raises:
            ParallaxError: if its plugin does not declare the section.
        """
        return find_section(self.settings(), offer.load(offer.spec.options)) if offer.spec.options else ""

    def list_hooks(self) -> dict[str, list[str]]:
        """Return the call hooks that each plugin implements, by the plugin's key."""
        found = defaultdict[str, list[str]](list)
        for hook in EXTENDING:
            for implementation in self._caller.find(hook):
                found[implementation.plugin_name].append(hook)
        return dict(found)

    def select_backend(
        self, model_config: Mapping[str, Any], available: Sequence[str], with_blocks: Sequence[str] = ()
    ) -> str | None:
        """Return the first backend of ``available`` that a plugin selects for a model, or None."""
        names = tuple(available)
        given = {"model_config": model_config, "available": names, "with_blocks": tuple(with_blocks)}
        for key, answer in self._answers("parallax_select_backend", given):
            if isinstance(answer, str) and answer in names:
                logger.info("backend %r was chosen by plugin %r", answer, self._caller.record(key).name)
                return answer
            self._refuse(key, f"parallax_select_backend returned {answer!r}, which is not one of {list(names)}")
        return None

    def find_python(self, backend: BackendSpec) -> BackendPython | None:
        """Return the Python that a plugin names for the workers of a backend; None: no plugin knows one."""
        return self._find_first("parallax_find_python", BackendPython, {"backend": backend})

    def find_page_server(self) -> PageServer | None:
        """Return what serves the pages of plugins; None: no plugin does."""
        return self._find_first("parallax_serve_pages", PageServer, {})  # type: ignore[type-abstract]  # a protocol that is checked

    def _find_first(self, hook: str, kind: type[T], given: Mapping[str, object]) -> T | None:
        """Return the first answer of a kind; a plugin that gives another is broken."""
        for key, answer in self._answers(hook, given):
            if isinstance(answer, kind):
                return answer
            self._refuse(key, f"{hook} returned {answer!r}, which is not a {kind.__name__}")
        return None

    def _answers(self, hook: str, given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Yield each answer but None with its plugin's key, in pluggy's order for firstresult."""
        for implementation in reversed(self._caller.find(hook)):
            key = implementation.plugin_name
            match self._caller.attempt(key, self._caller.bind(implementation, hook, **given)):
                case (None,):
                    continue
                case (answer,):
                    yield key, answer
                case None:
                    self._warn(key)

    def _refuse(self, key: str, reason: str) -> None:
        """Count a plugin as broken, since its answer cannot be used."""
        self._caller.fail(key, ValueError(reason))
        self._warn(key)

    def extend_server(self, open_surface: Callable[[], H]) -> Iterator[tuple[PluginRecord, H]]:
        """Let each plugin extend the server; yield the surfaces of plugins that did not raise.

        Args:
            open_surface: makes a surface for each plugin, so that a plugin that raises leaves nothing half done.
        """
        hook = "parallax_extend_server"
        for implementation in self._caller.find(hook):
            surface = open_surface()
            key = implementation.plugin_name
            if self._caller.attempt(key, self._caller.bind(implementation, hook, server=surface)):
                yield self._caller.record(key), surface
            else:
                self._warn(key)

    def open_dialects(self, open_one: Callable[[DialectSpec, Callable[[], OpenDialect]], None]) -> None:
        """Open each dialect; one that cannot be opened is left out, and its plugin is broken.

        Args:
            open_one: opens a dialect by what the function that it gets, too, imports.

        Raises:
            ParallaxError: if a dialect raises it.
            PluginConflict: if several plugins offer a dialect of the same name.
        """
        registry = self.dialects()
        for offer in map(registry.get, registry.names()):
            try:
                open_one(offer.spec, partial(offer.load, offer.spec.open))
            except Exception as error:  # a plugin may raise anything and must not harm the others
                if isinstance(error, ParallaxError) and not isinstance(error, BrokenPlugin):
                    raise
                self._caller.fail(offer.plugin.key, error)
                self._warn(offer.plugin.key)

    def observers(self) -> list[tuple[PluginRecord, Callable[[Event], object]]]:
        """Return the plugins that observe events, with a function that may take any time and may raise."""
        return [
            (self._caller.record(each.plugin_name), partial(self._tell, each))
            for each in self._caller.find("parallax_observe")
        ]

    def diagnose(self) -> Iterator[tuple[PluginRecord, Finding]]:
        """Yield the findings of each plugin; a plugin that raises or takes too long is broken."""
        given = {"config": self._read_settings(), "backends": [offer.spec for offer in self.backends().offers]}
        for key, finding in self._caller.collect("parallax_diagnose", Finding, DIAGNOSE_S, **given):
            yield self._caller.record(key), finding

    def shutdown(self, limit_s: float) -> None:
        """Call the shutdown hooks of all plugins concurrently, and wait at most ``limit_s`` seconds in total."""
        hook, deadline = "parallax_shutdown", time.monotonic() + limit_s
        calls = [(each.plugin_name, TimedCall(self._caller.bind(each, hook))) for each in self._caller.find(hook)]
        for key, call in calls:
            wait = partial(call.wait, max(0.0, deadline - time.monotonic()))
            if not self._caller.attempt(key, wait, is_quiet=False):
                self._warn(key)

    def require_all(self) -> None:
        """Load everything that plugins offer, and raise if a plugin that is not disabled cannot be loaded.

        Raises:
            BrokenPlugin: naming all broken or incompatible plugins.
        """
        self.list_registries()
        missing = [record for record in self.records if record.state in {"broken", "incompatible"}]
        if missing:
            reasons = "; ".join(f"{each.name!r} ({each.origin}) is {each.state}: {each.reason}" for each in missing)
            message = f"{len(missing)} of {len(self.records)} plugins are not loaded: {reasons}"
            raise BrokenPlugin(message, "; ".join(dict.fromkeys(each.remedy for each in missing)))

    def list_registries(self) -> dict[str, Registry[Any]]:
        """Return all registries, by their title in ``parallax plugins``."""
        return {
            "backends": self.backends(),
            "models": self.models(),
            "sources": self.sources(),
            "transports": self.transports(),
            "parsers": self.parsers(),
            "dialects": self.dialects(),
            "deployments": self.deployments(),
            **{kind: self.policies(kind) for kind in get_args(PolicyKind)},
            "node services": self.node_services(),
            "replicas": self.replicas(),
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
        """Return the offers of loaded plugins; each plugin's hook is called once."""
        if hook not in self._offered:
            self._offered[hook] = list(self._caller.collect(hook, spec))
        offered: list[tuple[str, S]] = self._offered[hook]
        return [Offer(each, self._caller.record(key)) for key, each in offered if self._caller.is_well(key)]

    def _warn(self, key: str) -> None:
        record = self._caller.record(key)
        logger.warning("plugin %r (%s) is %s: %s", record.name, record.origin, record.state, record.reason)
