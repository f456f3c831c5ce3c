from __future__ import annotations

import pytest
from msgspec.structs import replace

from parallax_core.base.errors import IncompatibleNode
from parallax_core.node.versions import check_machine, own_versions
from parallax_core.wire.versions import write_versions

OURS = own_versions()


def test_machine_of_the_same_versions_and_other_software_may_join() -> None:
    check_machine(write_versions(OURS))
    check_machine(write_versions(replace(OURS, software="9.9.9")))


def test_own_versions_are_searched_for_once() -> None:
    assert own_versions() is own_versions()


@pytest.mark.parametrize("change", [{"wire": OURS.wire + 1}, {"pages": OURS.pages + 1}])
def test_machine_of_other_versions_is_told_both(change: dict[str, int]) -> None:
    with pytest.raises(IncompatibleNode) as caught:
        check_machine(write_versions(replace(OURS, software="9.9.9", **change)))
    [theirs] = change.values()
    assert caught.value.message.startswith(f"the server, with Parallax {OURS.software}, ")
    assert caught.value.message.endswith(f"version {theirs}")
    assert "the machine, with Parallax 9.9.9," in caught.value.message


def test_damaged_versions_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected `array`"):
        check_machine(b"\x91\x01")
