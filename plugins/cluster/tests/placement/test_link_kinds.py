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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("TB4", "thunderbolt4"),
        ("USB4", "thunderbolt4"),
        ("gigabit", "1gbe"),
        ("10 Gbit", "10gbe"),
        ("2.5G", None),
        ("2.5 GigE", "2.5gbe"),
        ("Tailscale", "internet"),
        ("4G", "lte"),
        ("5G", "5g"),
        ("carrier pigeon", None),
    ],
)
def test_kinds_are_found_by_the_names_that_people_use(text: str, kind: str | None) -> None:
    assert find_kind(text) == (KINDS[kind] if kind else None)
