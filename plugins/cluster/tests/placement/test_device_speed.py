from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.placement.device_speed import find_form, invert_speed, measure_number
from parallax_core.api import DeviceProfile, LayerDemand

FORMS = ((0.625, 2e12, 20e9), (2.0, 4e12, 50e9), (4.0, 3e12, 60e9))
DEVICE = DeviceProfile(memory=10**10, flops=4e12, bandwidth=50e9, layer_s=1e-4, forms=FORMS)
PLAIN = LayerDemand(weights=2 * 10**6, read=2 * 10**6, flops=2 * 10**6)
EXPERTS = LayerDemand(
    weights=10**7, read=10**6, flops=2 * 10**6, experts=9 * 10**6, num_experts=9, num_active_experts=1
)


def test_bytes_of_a_number_are_those_of_the_weights_that_a_token_meets() -> None:
    assert measure_number([PLAIN]) == 2.0
    assert measure_number([PLAIN, EXPERTS]) == 2.0
    assert measure_number([replace(PLAIN, read=5 * 10**5)]) == 0.5


@pytest.mark.parametrize("form", FORMS)
def test_model_in_one_form_has_its_speed(form: tuple[float, float, float]) -> None:
    assert find_form(DEVICE, form[0]) == pytest.approx(form[1:])


def test_model_in_fewer_or_more_bits_than_measured_has_the_speed_of_the_nearest() -> None:
    assert (find_form(DEVICE, 0.3), find_form(DEVICE, 8.0)) == (FORMS[0][1:], FORMS[-1][1:])


def test_model_in_two_forms_takes_what_both_take() -> None:
    share, low, high = 0.25, FORMS[0], FORMS[1]
    mean = share * low[0] + (1 - share) * high[0]
    flops, bandwidth = find_form(DEVICE, mean)
    assert mean / bandwidth == pytest.approx(share * low[0] / low[2] + (1 - share) * high[0] / high[2])
    assert 1 / flops == pytest.approx(share / low[1] + (1 - share) / high[1])


def test_device_without_forms_has_one_speed() -> None:
    assert find_form(replace(DEVICE, forms=()), 0.5) == (4e12, 50e9)
    assert invert_speed(replace(DEVICE, forms=(), flops_efficiency=0.5), [PLAIN]).flop_s == pytest.approx(1 / 2e12)


def test_fixed_time_of_layers_with_experts_is_the_measured_one() -> None:
    layers = [PLAIN, EXPERTS, EXPERTS]
    assert invert_speed(DEVICE, layers).layer_s == 1e-4
    measured = invert_speed(replace(DEVICE, expert_layer_s=5e-4), layers)
    assert measured.layer_s * (1 + 2 + 2) == pytest.approx(1e-4 + 5e-4 + 5e-4)
