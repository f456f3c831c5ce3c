from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallax_core.base.refs import Ref


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "named_by_a_ref.py").write_text("raise_late = lambda: 1 / 0\nVALUE = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "named_by_a_ref", raising=False)
    return "named_by_a_ref"


def test_a_ref_imports_nothing_until_it_is_loaded(module: str) -> None:
    ref: Ref[int] = Ref(f"{module}:VALUE")
    assert module not in sys.modules
    assert ref.load() == 42
    assert module in sys.modules


def test_a_ref_to_a_module_inside_a_package_loads_its_object() -> None:
    ref: Ref[type] = Ref("parallax_core.base.refs:Ref")
    assert ref.load() is Ref


@pytest.mark.parametrize(
    "target",
    ["", "module", ":name", "module:", "module:two.names", "module:1x", "a:b:c", "module: name"],
)
def test_a_ref_of_another_form_is_refused_when_it_is_made(target: str) -> None:
    with pytest.raises(ValueError, match="written 'package") as caught:
        Ref(target)
    assert repr(target) in str(caught.value)


def test_what_the_import_raises_reaches_the_caller(module: str, tmp_path: Path) -> None:
    (tmp_path / "broken_by_a_ref.py").write_text("raise OSError('a library is missing')\n")
    for target, kind in (
        ("no_such_module_anywhere:x", ModuleNotFoundError),
        (f"{module}:absent", AttributeError),
        ("broken_by_a_ref:x", OSError),
    ):
        ref: Ref[object] = Ref(target)
        with pytest.raises(kind):
            ref.load()


def test_refs_are_values() -> None:
    one: Ref[int] = Ref("m:x")
    same: Ref[int] = Ref("m:x")
    other: Ref[int] = Ref("m:y")
    assert one == same != other
    assert len({one, same, other}) == 2
    with pytest.raises(AttributeError):
        one.target = "m:y"  # type: ignore[misc]  # the point of the test
