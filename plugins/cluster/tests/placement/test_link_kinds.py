from __future__ import annotations

import pytest

from parallax_cluster.placement.link_kinds import KINDS, find_kind


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("wifi", "wifi"),
        ("Wi-Fi 6", "wifi6"),
        ("10 GbE", "10gbe"),
        ("Thunderbolt 5", "thunderbolt5"),
        ("2.5GbE", "2.5gbe"),
    ],
)
def test_kinds_are_found_as_people_write_them(text: str, name: str) -> None:
    assert find_kind(text) == KINDS[name]


def test_unknown_kind_is_none() -> None:
    assert (find_kind("rope"), find_kind("")) == (None, None)
