"""Halves of a product on two streams give what the whole does."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from parallax_backend_mlx import split_products
from parallax_backend_mlx.panel_weights import MOST_ROWS, WIDTH, make_panels, multiply_panels
from parallax_backend_mlx.runtime import BLAS, mx
from parallax_backend_mlx.split_products import LEAST_WORK, split_product

INPUTS = 24


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every product."""
    monkeypatch.setattr(split_products, "LEAST_WORK", 0)
    monkeypatch.setattr(split_products, "BLAS", dataclasses.replace(BLAS, leaves_core=True))


def multiply(x: mx.array, panels: mx.array) -> mx.array:
    """Return the product with the weight of some panels."""
    return x @ panels.transpose(1, 0, 2).reshape(panels.shape[1], -1)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("num_panels", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 8, MOST_ROWS + 1])
def test_halves_equal_the_whole(num_panels: int, rows: int) -> None:
    weight, x = mx.random.normal((num_panels * WIDTH, INPUTS)), mx.random.normal((1, rows, INPUTS))
    product = multiply_panels(x, make_panels(weight))
    assert product.shape == (1, rows, num_panels * WIDTH)
    assert mx.allclose(product, x @ weight.T, atol=1e-5).item()


@pytest.mark.usefixtures("halves")
def test_every_thread_has_a_stream_of_its_own() -> None:
    def product_of(number: int) -> object:
        x, panels = mx.full((8, INPUTS), number), mx.ones((4, INPUTS, WIDTH))
        return split_product(multiply, x, panels).sum().item()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(product_of, range(8)))
    assert found == [number * 8 * INPUTS * 4 * WIDTH for number in range(8)]


@pytest.mark.parametrize(("work", "leaves_core", "parts"), [(0.9, True, 1), (1.1, True, 2), (1.1, False, 1)])
def test_large_products_are_split_where_a_core_is_left(
    work: float, parts: int, monkeypatch: pytest.MonkeyPatch, *, leaves_core: bool
) -> None:
    monkeypatch.setattr(split_products, "BLAS", dataclasses.replace(BLAS, leaves_core=leaves_core))
    seen: list[int] = []

    def note(x: mx.array, panels: mx.array) -> mx.array:
        seen.append(len(panels))
        return multiply(x, panels)

    panels = mx.ones((9, INPUTS, WIDTH))
    rows = int(work * LEAST_WORK / panels.size)
    assert split_product(note, mx.ones((rows, INPUTS)), panels).shape == (rows, 9 * WIDTH)
    assert sorted(seen) == ([4, 5] if parts == 2 else [9])
