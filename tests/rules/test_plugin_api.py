"""Plugins made for this plugin API keep working: the API only grows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_core.api import PLUGIN_API
from tests.rules.pluginapi import Facts, describe_api, find_breaks

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / f"tests/data/plugin_api_{PLUGIN_API}.json"
POLICY = (ROOT / "docs/explanation/change-policy.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def snapshot() -> Facts:
    """Return the record of the plugin API."""
    facts: Facts = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return facts


def test_nothing_that_plugins_rely_on_has_changed(snapshot: Facts) -> None:
    breaks = list(find_breaks(snapshot, describe_api()))
    assert breaks == [], "see docs/explanation/change-policy.md"


def test_description_is_the_same_when_made_twice() -> None:
    assert json.loads(json.dumps(describe_api())) == json.loads(json.dumps(describe_api()))


def remove_hook(facts: Facts) -> None:
    del facts["hooks"]["parallax_observe"]


def rename_argument(facts: Facts) -> None:
    parameters = facts["hooks"]["parallax_select_backend"]["parameters"]
    parameters["names"] = parameters.pop("available")


def ask_all(facts: Facts) -> None:
    facts["hooks"]["parallax_select_backend"]["firstresult"] = False


def retype_result(facts: Facts) -> None:
    facts["hooks"]["parallax_register_backends"]["returns"] = "Sequence[BackendSpec]"


def remove_name(facts: Facts) -> None:
    del facts["names"]["PagePool"]


def remove_field(facts: Facts) -> None:
    del facts["names"]["StagePlan"]["fields"]["device"]


def retype_field(facts: Facts) -> None:
    facts["names"]["StagePlan"]["fields"]["device"]["type"] = "int"


def change_default(facts: Facts) -> None:
    facts["names"]["StagePlan"]["fields"]["memory_fraction"]["default"] = "0.9"


def require_field(facts: Facts) -> None:
    facts["names"]["BackendSpec"]["fields"]["colour"] = {"type": "str", "default": "required"}


def insert_field(facts: Facts) -> None:
    fields = facts["names"]["Row"]["fields"]
    facts["names"]["Row"]["fields"] = {"first": {"type": "int", "default": "0"}, **fields}


def remove_method(facts: Facts) -> None:
    del facts["names"]["Stage"]["members"]["edit"]


def add_method(facts: Facts) -> None:
    facts["names"]["Stage"]["members"]["reload"] = {"parameters": {}, "returns": "None"}


def add_parameter(facts: Facts) -> None:
    facts["names"]["Backend"]["members"]["open_stage"]["parameters"]["why"] = {"type": "str", "default": "''"}


def require_parameter(facts: Facts) -> None:
    facts["names"]["draw"]["parameters"]["why"] = {"type": "str", "default": "required"}


def retype_property(facts: Facts) -> None:
    facts["names"]["Stage"]["members"]["info"] = {"property": "dict"}


def drop_base(facts: Facts) -> None:
    facts["names"]["BackendFailed"]["bases"] = ["Exception"]


def drop_word(facts: Facts) -> None:
    facts["names"]["DType"]["of"].remove("float16")


def change_kind(facts: Facts) -> None:
    facts["names"]["draw"] = {"kind": "class", "bases": [], "members": {}}


@pytest.mark.parametrize(
    "change",
    [
        remove_hook, rename_argument, ask_all, retype_result, remove_name, remove_field, retype_field, change_default,
        require_field, insert_field, remove_method, add_method, add_parameter, require_parameter, retype_property,
        drop_base, drop_word, change_kind,
    ],
)  # fmt: skip
def test_change_that_breaks_a_plugin_is_found(change: Callable[[Facts], None]) -> None:
    old = describe_api()
    new = copy.deepcopy(old)
    change(new)
    assert len(list(find_breaks(old, new))) == 1


def grow_hooks(facts: Facts) -> None:
    facts["hooks"]["parallax_new"] = facts["hooks"]["parallax_shutdown"]


def grow_arguments(facts: Facts) -> None:
    facts["hooks"]["parallax_shutdown"]["parameters"]["reason"] = {"type": "str", "default": "required"}


def grow_names(facts: Facts) -> None:
    facts["names"]["New"] = facts["names"]["Stage"]


def grow_fields(facts: Facts) -> None:
    for name in ("StagePlan", "Row"):
        facts["names"][name]["fields"]["new"] = {"type": "str", "default": "''"}


def grow_what_core_gives(facts: Facts) -> None:
    facts["names"]["HttpSurface"]["members"]["model"] = {"property": "str"}


def grow_functions(facts: Facts) -> None:
    facts["names"]["draw"]["parameters"]["new"] = {"type": "int", "default": "0"}


def grow_words(facts: Facts) -> None:
    facts["names"]["Event"]["of"].append("NodeJoined")


@pytest.mark.parametrize(
    "change",
    [grow_hooks, grow_arguments, grow_names, grow_fields, grow_what_core_gives, grow_functions, grow_words],
)
def test_growth_is_no_break(change: Callable[[Facts], None]) -> None:
    old = describe_api()
    new = copy.deepcopy(old)
    change(new)
    assert new != old
    assert list(find_breaks(old, new)) == []


def test_policy_says_how_the_record_is_made() -> None:
    assert "tests/data/make_plugin_api.py" in POLICY
    assert f"plugin_api_{PLUGIN_API}.json" in POLICY
