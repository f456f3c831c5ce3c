from __future__ import annotations

import pytest

from parallax_cluster.deploy.relays import make_offer, make_relay, read_limits
from parallax_core.config.network_options import RelaySettings


def test_machine_is_a_relay_where_its_user_says_so() -> None:
    for is_one in (True, False):
        settings = RelaySettings(relay=is_one)
        assert (make_relay(settings, lambda _: True) is not None) == is_one
        assert (make_offer(settings) is not None) == is_one


def test_limits_are_in_megabytes_a_second_and_gigabytes_a_day() -> None:
    limits = read_limits(RelaySettings(relay_rate=2.5, relay_quota=3))
    assert (limits.bytes_per_s, limits.bytes_per_day) == pytest.approx((2.5e6, 3e9))
