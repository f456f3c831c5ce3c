from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_core.api import BackendFailed, LayerRange, LeasedStage, Leasing, ParallaxError, StageBatch
from parallax_core.testing.toy import Toy, ToyStage

TOY = Toy(("full",) * 4)
ALL = LayerRange(0, 4)


class Holder:
    """A stage that serves through leases, and a record of its calls."""

    def __init__(self) -> None:
        self.opened: list[ToyStage] = []
        self.released = 0
        self.is_full = False
        self.stage = LeasedStage(TOY.open().info, self.open_part, self.release)

    def open_part(self, layers: LayerRange, memory_share: float) -> ToyStage:
        if self.is_full:
            raise ParallaxError("no page fits")
        self.opened.append(TOY.open(layers, num_pages=max(1, int(100 * memory_share))))
        return self.opened[-1]

    def release(self) -> None:
        assert all(stage.closed for stage in self.opened), "weights are released last"
        self.released += 1


def test_stage_has_the_protocol_and_its_capability() -> None:
    stage = Holder().stage
    assert isinstance(stage, Leasing)
    assert stage.info == replace(TOY.open().info, capabilities=stage.info.capabilities)
    assert stage.info.capabilities - TOY.open().info.capabilities == {"leases"}
    assert not isinstance(TOY.open(), Leasing)


def test_lease_passes_layers_share_and_calls_on() -> None:
    holder = Holder()
    lease = holder.stage.lease(LayerRange(0, 3), 0.25)
    assert (lease.info.layers, lease.info.pools[0].num_pages) == (LayerRange(0, 3), 25)
    assert lease.step(StageBatch(())).wait().free == (25,)


def test_failed_lease_takes_no_share() -> None:
    holder = Holder()
    holder.is_full = True
    with pytest.raises(ParallaxError, match="no page fits"):
        holder.stage.lease(ALL, 1.0)
    holder.is_full = False
    holder.stage.lease(ALL, 1.0)


@settings(max_examples=50)
@given(parts=st.lists(st.integers(1, 1000), min_size=1, max_size=40))
def test_shares_that_sum_to_one_fit_whatever_rounding_does(parts: list[int]) -> None:
    stage, total = Holder().stage, sum(parts)
    leases = [stage.lease(ALL, part / total) for part in parts]
    with pytest.raises(ParallaxError) as caught:
        stage.lease(ALL, 1e-6)
    assert "close another lease" in caught.value.hint
    leases[0].close()
    stage.lease(ALL, parts[0] / total)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, float("nan"), float("inf")])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="at most 1, not"):
        Holder().stage.lease(ALL, share)


@pytest.mark.parametrize("pair", [(0, 5), (-1, 4), (2, 2), (3, 1)])
def test_layers_that_are_not_loaded_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a range of the loaded 0-4"):
        Holder().stage.lease(LayerRange(*pair), 0.5)


def test_stage_itself_serves_nothing() -> None:
    stage = Holder().stage
    for call in (lambda: stage.edit([]), lambda: stage.step(StageBatch(()))):
        with pytest.raises(BackendFailed, match="layers 0-4 serves through leases only"):
            call()


def test_closing_releases_the_weights_once_and_last() -> None:
    holder = Holder()
    first, second = (holder.stage.lease(ALL, 0.5) for _ in range(2))
    first.close()
    assert [stage.closed for stage in holder.opened] == [True, False]
    for _ in range(2):
        holder.stage.close()
        second.close()
    assert holder.released == 1
    with pytest.raises(BackendFailed, match="closed"):
        holder.stage.lease(ALL, 0.5)


def test_lease_that_fails_to_close_stops_no_other() -> None:
    holder = Holder()
    for _ in range(3):
        holder.stage.lease(ALL, 0.25)
    middle, closes = holder.opened[1], holder.opened[1].close

    def fail() -> None:
        closes()
        raise OSError("the device is gone")

    middle.close = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the device is gone"):
        holder.stage.close()
    assert [stage.closed for stage in holder.opened] == [True] * 3
    assert holder.released == 1
