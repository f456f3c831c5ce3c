"""Calls hook implementations one by one, so that every answer and every failure belongs to one plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TypeVar, cast

import pluggy

from parallax_core import hookspecs
from parallax_core.plugins.discovery import PluginRecord, break_record
from parallax_core.plugins.limit import TimedCall
from parallax_core.plugins.output import divert_output
from parallax_core.plugins.trace import trace_call

T = TypeVar("T")


class Caller:
    """The loaded plugins, with a record of each."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("parallax")
        self._manager.add_hookspecs(hookspecs)
        self._records: dict[str, PluginRecord] = {}

    @property
    def records(self) -> list[PluginRecord]:
        """Every plugin with its current state."""
        return list(self._records.values())

    def add(self, record: PluginRecord, module: object | None) -> None:
        """Register a plugin; it is broken if its hooks are invalid or its key exists already."""
        key = record.key
        if module is not None:
            try:
                self._manager.register(module, name=key)
                self._check_hooks(module)
            except (pluggy.PluginValidationError, ValueError) as error:
                record = break_record(record, error)
                if self._manager.has_plugin(key):
                    self._manager.unregister(name=key)
        self._records[key] = record

    def find(self, hook: str) -> list[pluggy.HookImpl]:
        """Return the implementations of a hook by loaded plugins, in the order the plugins were added."""
        found: list[pluggy.HookImpl] = getattr(self._manager.hook, hook).get_hookimpls()
        return [each for each in found if self.is_well(each.plugin_name)]

    def is_well(self, key: str) -> bool:
        """Return whether a plugin is loaded and has not failed since."""
        return self._records[key].state == "loaded"

    def record(self, key: str) -> PluginRecord:
        """Return the current record of a plugin."""
        return self._records[key]

    def bind(self, implementation: pluggy.HookImpl, hook: str, **given: object) -> Callable[[], object]:
        """Return a call of an implementation with the arguments it takes; traced, if tracing is on."""
        arguments = (given[name] for name in implementation.argnames)
        call = partial(implementation.function, *arguments)
        return partial(trace_call, hook, implementation.plugin_name, call)

    def attempt(self, key: str, call: Callable[[], T], *, is_quiet: bool = True) -> tuple[T] | None:
        """Return the answer of a plugin's call in a tuple, or None if it raised, which marks the plugin as broken."""
        try:
            with divert_output() if is_quiet else nullcontext():
                return (call(),)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- a plugin may raise anything and must not harm the others
            self.fail(key, error)
            return None

    def collect(
        self, hook: str, kind: type[T], limit_s: float | None = None, **arguments: object
    ) -> Iterator[tuple[str, T]]:
        """Yield the items that the implementations of a hook return for ``arguments``, each with its plugin's key.

        A plugin that returns anything but an iterable of ``kind``, or takes longer than ``limit_s`` seconds, is broken.
        """
        for implementation in self.find(hook):
            key = implementation.plugin_name
            call = partial(_list_answers, self.bind(implementation, hook, **arguments), hook, kind)
            limited = call if limit_s is None else partial(_call_limited, call, limit_s)
            for answer in (self.attempt(key, limited) or ([],))[0]:
                yield key, answer

    def fail(self, key: str, error: BaseException) -> None:
        """Mark a plugin as broken."""
        self._records[key] = break_record(self._records[key], error)

    def _check_hooks(self, module: object) -> None:
        for caller in self._manager.get_hookcallers(module) or ():
            if not caller.has_spec():
                message = f"implements {caller.name}, which is not a hook of plugin API {hookspecs.PLUGIN_API}"
                raise ValueError(message)
            for implementation in caller.get_hookimpls():
                if implementation.plugin is module and (implementation.wrapper or implementation.hookwrapper):
                    raise ValueError(f"implements {caller.name} as a wrapper; Parallax does not support hook wrappers")


def _list_answers(call: Callable[[], object], hook: str, kind: type[T]) -> list[T]:
    answers = list(cast("Iterable[object]", call()))
    if wrong := [each for each in answers if not isinstance(each, kind)]:
        raise TypeError(f"{hook} returned {wrong[0]!r}, which is not a {kind.__name__}")
    return cast("list[T]", answers)


def _call_limited(call: Callable[[], T], limit_s: float) -> T:
    return TimedCall(call).wait(limit_s)
