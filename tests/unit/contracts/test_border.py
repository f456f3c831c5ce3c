"""What crosses between layers, and where a model cannot be cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_core.api import (
    LayerRange,
    LayerShape,
    ModelShape,
    Plane,
    TensorSpec,
    Unsupported,
    check_cuts,
    count_border_bytes,
    describe_ends,
    list_borders,
)

LAYER = LayerShape(kind="full", weights=10, active_weights=10, kv_width=4)


def make_shape(*layers: LayerShape, **others: object) -> ModelShape:
    shape = ModelShape(
        hidden_size=8,
        vocab_size=16,
        context_length=32,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        layers=layers,
        before_weights=128,
        after_weights=8,
        is_tied=True,
    )
    return replace(shape, **others)  # type: ignore[arg-type]


def read(source: int) -> LayerShape:
    return replace(LAYER, kv_width=0, source=source)


def test_plain_layers_pass_on_hidden_alone() -> None:
    borders = list_borders(make_shape(LAYER, LAYER, LAYER))
    assert [border.layer for border in borders] == [1, 2]
    assert {border.planes for border in borders} == {(Plane("hidden", (8,)),)}
    assert [count_border_bytes(border, 2) for border in borders] == [16, 16]


def test_plane_crosses_from_the_layer_that_gives_it_to_the_last_that_takes_it() -> None:
    first = Plane("first", (2, 3), "float32")
    giver = replace(LAYER, gives=(Plane("hidden", (8,)), first))
    taker = replace(LAYER, takes=("hidden", "first"))
    borders = list_borders(make_shape(LAYER, giver, LAYER, taker, LAYER))
    assert [[plane.name for plane in border.planes] for border in borders] == [
        ["hidden"],
        ["hidden", "first"],
        ["hidden", "first"],
        ["hidden"],
    ]
    assert [count_border_bytes(border, 2) for border in borders] == [16, 16 + 24, 16 + 24, 16]


def test_bank_that_grows_crosses_in_its_size_of_that_place_up_to_the_head() -> None:
    layers = [
        replace(LAYER, takes=("hidden", "bank") if size > 1 else ("hidden",), gives=gives(size)) for size in (1, 2, 3)
    ]
    borders = list_borders(make_shape(*layers, takes=("hidden", "bank")))
    assert [border.planes[1].shape for border in borders] == [(1, 8), (2, 8)]


def gives(size: int) -> tuple[Plane, ...]:
    return Plane("hidden", (8,)), Plane("bank", (size, 8))


def test_layers_that_share_keys_stay_together() -> None:
    shape = make_shape(LAYER, LAYER, LAYER, read(1), read(2), LAYER)
    assert [border.obstacle for border in list_borders(shape)] == [
        "",
        "layer 3 reads the keys of layer 1",
        "layer 3 reads the keys of layer 1",
        "layer 4 reads the keys of layer 2",
        "",
    ]
    assert [count_border_bytes(border, 2) for border in list_borders(shape)] == [16, 0, 0, 0, 16]
    with pytest.raises(
        Unsupported, match=r"cannot be cut between layers 2 and 3: layer 3 reads the keys of layer 1"
    ) as caught:
        check_cuts(shape, LayerRange(0, 3))
    assert caught.value.hint == "let a stage begin with layer 1 or 5"
    check_cuts(shape, LayerRange(0, 6))
    check_cuts(shape, LayerRange(1, 5))


def test_model_whose_layers_all_share_runs_in_one_stage() -> None:
    shape = make_shape(LAYER, read(0), read(0))
    with pytest.raises(Unsupported, match="layer 2 reads the keys of layer 0") as caught:
        check_cuts(shape, LayerRange(2, 3))
    assert caught.value.hint == "run the model in one stage"


@pytest.mark.parametrize("layers", [(read(1), LAYER), (LAYER, read(1)), (LAYER, read(-1)), (LAYER, read(0), read(1))])
def test_source_that_has_no_keys_yet_is_refused(layers: tuple[LayerShape, ...]) -> None:
    with pytest.raises(Unsupported, match="which has none to read"):
        list_borders(make_shape(*layers))


def test_plane_that_nobody_gave_is_refused() -> None:
    with pytest.raises(Unsupported, match="layer 1 takes 'first', which no layer before it gives"):
        list_borders(make_shape(LAYER, replace(LAYER, takes=("hidden", "first"))))
    with pytest.raises(Unsupported, match="the head takes 'bank'"):
        list_borders(make_shape(LAYER, takes=("bank",)))


def test_many_layers_are_read_in_a_moment() -> None:
    borders = list_borders(make_shape(LAYER, *[read(0)] * 9_999))
    assert len(borders) == 9_999
    assert all(border.obstacle for border in borders)


def test_ends_of_a_stage_have_the_dtype_of_activations_unless_it_is_fixed() -> None:
    streams = Plane("hidden", (4, 8))
    mix = Plane("mix", (2,), "float32")
    layer = replace(LAYER, takes=("hidden", "mix"), gives=(streams, mix))
    shape = make_shape(replace(layer, takes=("hidden",)), layer, layer)
    takes, given = describe_ends(shape, LayerRange(1, 2), "bfloat16")
    assert takes == given
    assert takes == (
        TensorSpec(8, "bfloat16", "hidden", (4,)),
        TensorSpec(2, "float32", "mix", (), is_exact=True),
    )
    assert describe_ends(shape, LayerRange(0, 3), "bfloat16") == ((), ())


@pytest.mark.parametrize(("cut", "near"), [(1, "2"), (3, "2 or 4"), (7, "6 or 8"), (9, "8")], ids=str)
def test_refused_cut_names_the_nearest_border_on_each_side(cut: int, near: str) -> None:
    """Layers of two stay together, so that a stage may begin with each even one."""
    shape = make_shape(*(read(index - 1) if index % 2 else LAYER for index in range(10)))
    with pytest.raises(Unsupported, match=f"cannot be cut between layers {cut - 1} and {cut}: ") as caught:
        check_cuts(shape, LayerRange(0, cut))
    assert caught.value.hint == f"let a stage begin with layer {near}"
