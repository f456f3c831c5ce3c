from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from parallax_core.api import NodeService, NodeServiceSpec, Ref, ServiceMessage, hookimpl, service_tag
from parallax_core.base.errors import BrokenPlugin, PluginConflict
from parallax_core.deploy.node_services import make_services
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost


class Note(ServiceMessage, frozen=True, tag=service_tag("their-notes", 0)):
    pass


class Twin(ServiceMessage, frozen=True, tag=service_tag("their-notes", 0)):
    pass


class Reserved(ServiceMessage, frozen=True, tag=200):
    pass


class OfCore(ServiceMessage, frozen=True, tag=0):
    pass


class Named(ServiceMessage, frozen=True, tag="note"):
    pass


@dataclass(frozen=True)
class Context:
    """What a service is made from."""

    node: str = "here"
    transport: Any = None


class Made(NodeService):
    def __init__(self, context: Context) -> None:
        self.context = context


def make_none(context: Context) -> None:
    del context


THEIRS, TWINS, OURS, STOLEN, TEXT = (Note,), (Twin,), (Reserved,), (OfCore,), (Named,)


def make_broken(context: Context) -> None:
    raise LookupError(f"no sensor on {context.node}")


def offer(
    messages: str, distribution: str = "Their.Notes", name: str = "notes", **sides: str
) -> tuple[PluginRecord, Any]:
    """Return a plugin with a service whose factories are named by their sides."""
    refs: dict[str, Any] = {side: Ref(f"{__name__}:{factory}") for side, factory in (sides or {"node": "Made"}).items()}
    spec = NodeServiceSpec(name=name, summary="notes", messages=Ref(f"{__name__}:{messages}"), **refs)
    module = types.SimpleNamespace(parallax_register_node_services=hookimpl(lambda: [spec]))
    key = f"{distribution}-{name}"
    return PluginRecord(name=key, distribution=distribution, version="1", module=key, state="loaded"), module


def make(*offers: tuple[PluginRecord, Any], side: Literal["node", "head"] = "node") -> list[NodeService]:
    return list(make_services(PluginHost(offers), side, Context()))


def test_each_side_has_the_services_that_are_for_it() -> None:
    plugins = (offer("THEIRS"), offer("OURS", "parallax-notes", "ours", node="make_none", head="Made"))
    [of_node], [of_head] = make(*plugins), make(*plugins, side="head")
    assert isinstance(of_node, Made)
    assert isinstance(of_head, Made)
    assert of_node.context == Context()


@pytest.mark.parametrize(
    ("messages", "distribution", "said"),
    [
        ("OURS", "their-notes", "the message Reserved has the tag 200, which is not one of those of their-notes"),
        ("THEIRS", "other-notes", "the message Note has the tag [0-9]+, which is not one of those of other-notes"),
        ("TEXT", "their-notes", "the tag of the message Named is 'note', not a number"),
    ],
)
def test_message_with_a_tag_of_others_is_refused(messages: str, distribution: str, said: str) -> None:
    with pytest.raises(BrokenPlugin, match=said) as caught:
        make(offer(messages, distribution))
    assert "service_tag" in caught.value.hint


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (offer("TWINS", name="twin"), "the messages Note and Twin have the same tag"),
        (offer("STOLEN", "parallax-notes", "stolen"), "the tag 0, which is one of core's"),
        (offer("OURS", "parallax-notes"), "node service 'notes' is offered by both"),
    ],
)
def test_services_that_do_not_go_together_are_named(second: tuple[PluginRecord, Any], said: str) -> None:
    with pytest.raises(PluginConflict, match=said):
        make(offer("THEIRS"), second)


def test_service_that_cannot_be_made_names_its_plugin() -> None:
    with pytest.raises(BrokenPlugin, match=r"'notes' of .*Their.Notes.* cannot be made: .*no sensor on here"):
        make(offer("THEIRS", node="make_broken"))
