"""Reads ``--backend-option`` into the sections of the configuration that hold the options of backends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.config.schema import Key, list_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.config.source import SettingOrigin, WrittenSetting
from parallax_core.config.worker import WorkerSettings
from parallax_core.plugins.host import PluginHost

FLAG = "--backend-option"

BackendOptions = Mapping[str, Mapping[str, str]]
"""Options as text, by backend and by name."""


def prepare_plugins(settings: ServeSettings | WorkerSettings, config: Config) -> PluginHost:
    """Load and configure the plugins; ``settings.backend_option`` overrides options in ``config``.

    Raises:
        UsageError: if a setting, or an option of a backend, is unknown or invalid.
        ParallaxError: if no plugin offers a backend that is given options.
    """
    plugins = PluginHost.discover(config)
    sections: dict[str, dict[str, WrittenSetting]] = {}
    for backend, options in read_backend_options(settings, plugins).items():
        if options and backend not in _list_elsewhere(settings):
            origins = {name: SettingOrigin("flag", f"{FLAG} {name}") for name in options}
            written = {name: WrittenSetting(text, origins[name]) for name, text in options.items()}
            sections[plugins.find_section(plugins.backends().get(backend))] = written
    plugins.configure(config.override(sections))
    return plugins


def read_backend_options(settings: ServeSettings | WorkerSettings, plugins: PluginHost) -> BackendOptions:
    """Return the options in ``settings.backend_option``; their values are text, which is not checked here.

    The options of a backend that ``--python`` runs in another environment are checked by its workers.

    Raises:
        UsageError: if a text is not of the form NAME=VALUE or BACKEND.NAME=VALUE, or the backend has no such option.
        ParallaxError: if no plugin offers a backend that is given options.
    """
    texts, found = settings.backend_option, dict[str, dict[str, str]]()
    if texts and isinstance(settings, ServeSettings) and settings.listen is not None:
        message = f"{FLAG} is for stages that this command opens, and with --listen it opens none"
        raise UsageError(message, f"give it to each worker: parallax worker --backend NAME {FLAG} {texts[0]}")
    backends = [name.strip() for name in (settings.backend or "").split(",") if name.strip()]
    for text in texts:
        backend, name, value = _parse(text, list(dict.fromkeys(backends)))
        if backend not in _list_elsewhere(settings):
            _check_known(backend, name, plugins)
        found.setdefault(backend, {})[name] = value
    return found


def collect_options(plugins: PluginHost, backends: Iterable[str], given: BackendOptions) -> BackendOptions:
    """Return the options of ``backends`` as they are configured here, as text; those in ``given`` override them.

    Backends that are not installed here, or have no options, are left out, and so are options with their defaults.
    """
    found = {}
    known = {offer.spec.name: offer for offer in plugins.backends().offers if offer.spec.options is not None}
    for name in (each for each in backends if each in known):
        schema = known[name].spec.options
        keys = list_keys(known[name].load(schema)) if schema is not None else {}
        values = plugins.read_options(known[name])
        changed = {key: _write(value) for key, value in values.items() if value != keys[key].default}
        found[name] = {**changed, **given.get(name, {})}
    return found


def _write(value: object) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _list_elsewhere(settings: ServeSettings | WorkerSettings) -> set[str]:
    """Return the backends that ``--python`` runs in other environments."""
    texts = settings.python if isinstance(settings, ServeSettings) else ()
    return {text.partition("=")[0] for text in texts}


def _parse(text: str, backends: Sequence[str]) -> tuple[str, str, str]:
    """Return the backend, the name and the value of an option, for stages that use ``backends``."""
    path, _, value = (part.strip() for part in text.partition("="))
    backend, _, name = path.rpartition(".")
    if not (name and value):
        raise UsageError(f"{FLAG} {text!r} is not of the form NAME=VALUE", "write it as weights=int8")
    if not backends:
        message = f"{FLAG} needs --backend, since every backend has options of its own"
        raise UsageError(message, f"add --backend {backend or 'NAME'}; `parallax config` shows the options of each")
    if not backend and len(backends) > 1:
        message = f"{FLAG} {text!r} does not say which backend it is for: {' or '.join(backends)}"
        raise UsageError(message, f"name it: {FLAG} {backends[0]}.{text}")
    if backend and backend not in backends:
        message = f"{FLAG} {text!r} is for the backend {backend!r}, and no stage uses it"
        raise UsageError(message, f"the stages use: {', '.join(backends)}")
    return backend or backends[0], name, value


def _check_known(backend: str, name: str, plugins: PluginHost) -> None:
    offer = plugins.backends().get(backend)
    if offer.spec.options is None:
        raise UsageError(f"the backend {backend!r} has no options, and so no {name!r}", f"leave {FLAG} out")
    keys = list_keys(offer.load(offer.spec.options))
    if name not in keys:
        near = get_close_matches(name.replace("-", "_"), keys, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        lines = [f"{guess}{backend} has these options:", *map(_describe, keys.values())]
        raise UsageError(f"the backend {backend!r} has no option {name!r}", "\n".join(lines))


def _describe(key: Key) -> str:
    return f"  {key.name} ({key.expected}): {key.description}" if key.description else f"  {key.name} ({key.expected})"
