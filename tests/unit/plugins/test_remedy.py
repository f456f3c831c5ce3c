"""What is said of an error of a plugin, and what helps."""

from __future__ import annotations

from importlib import metadata

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.plugins.remedy import describe_error, find_remedy, normalize

REQUIREMENTS = ["present>=1", "absent[extra]>=2,<3", "other-absent ; extra == 'gpu'", "absent.too==1; "]
REINSTALL = "pip install --force-reinstall acme, or report it to its authors"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``acme`` with its requirements, of which ``present`` is installed."""

    def find(name: str) -> str:
        if name not in {"present", "acme"}:
            raise metadata.PackageNotFoundError(name)
        return "1"

    def list_requirements(name: str) -> list[str]:
        find(name)
        return REQUIREMENTS

    monkeypatch.setattr(metadata, "version", find)
    monkeypatch.setattr(metadata, "requires", list_requirements)


def test_names_of_distributions_are_compared_as_indexes_do() -> None:
    assert {normalize(name) for name in ("Acme-Models", "acme_models", "ACME..models", "acme-_models")} == {
        "acme-models"
    }


def test_error_is_described_in_one_line() -> None:
    assert describe_error(ParallaxError("no such device", "choose another")) == "no such device"
    assert describe_error(SystemExit(3)) == "it tried to end the process: SystemExit(3)"
    assert describe_error(ValueError("one\n  two")) == "ValueError: one two"


def test_hint_of_a_plugin_comes_first() -> None:
    assert find_remedy(ParallaxError("x", "plug it in"), "acme", "acme_plugin") == "plug it in"
    assert find_remedy(ParallaxError("x"), "acme", "acme_plugin") == REINSTALL


def test_requirements_that_are_missing_are_to_be_installed_but_no_optional_ones() -> None:
    error = ModuleNotFoundError("No module named 'absent.part'", name="absent.part")
    found = find_remedy(error, "acme", "acme_plugin:hooks")
    assert found == "module 'absent' is missing: pip install absent absent.too"


def test_module_that_no_requirement_explains_is_to_be_installed_by_its_name() -> None:
    error = ModuleNotFoundError("No module named 'absent'", name="absent")
    assert find_remedy(error, "not-installed", "acme_plugin") == "module 'absent' is missing: pip install absent"


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("x", name="acme_plugin.lost"), ModuleNotFoundError("x"), KeyError()]
)
def test_fault_of_the_plugin_itself_is_mended_by_its_authors(error: Exception) -> None:
    assert find_remedy(error, "acme", "acme_plugin:hooks") == REINSTALL
    assert find_remedy(error, "acme", "acme_plugin.hooks") == REINSTALL
