"""Products, normalisations and rotations: compiled and in plain torch, against double precision."""

from __future__ import annotations

from ctypes import POINTER, pointer

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from parallax_backend_torch.kernels import arena, library, linear, parts, signature
from parallax_backend_torch.kernels.ggml import Form
from parallax_backend_torch.kernels.panels import PanelPacked
from parallax_backend_torch.kernels.rows import TensorRows, WeightKind
from parallax_core.api import ParallaxError, Unsupported

KINDS: tuple[WeightKind, ...] = ("float32", "bfloat16", "int8", "int8_low", "int4")
CLOSE = {"float32": 2e-6, "bfloat16": 2e-6, "int8": 1e-4, "int8_low": 1e-4, "int4": 2e-2}
"""How far a product may be from that with the weight as it is kept, of its norm; two kinds round activations."""


pytestmark = pytest.mark.usefixtures("one_thread")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def miss(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return how far a result is from another, of its norm."""
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (33, 70), (64, 577), (17, 4133), (2049, 707)])
def test_product_is_that_of_the_weight_as_kept(mode: library.Mode, kind: WeightKind, height: int, width: int) -> None:
    bias = draw(height, seed=1)
    packed = linear.pack(draw(height, width, seed=2), kind, bias=bias)
    dense = packed.to_dense().double()
    for rows in (0, 1, 2, 3, 5, 8, 33, 130):
        x, residual = draw(rows, width + 3, seed=3)[:, :width], draw(rows, height, seed=4)
        assert miss(packed.apply(x), x.double() @ dense.T + bias) < CLOSE[kind]
        assert miss(packed.apply(x, residual), x.double() @ dense.T + bias + residual) < CLOSE[kind]


@pytest.mark.parametrize(("kind", "narrow"), [*((kind, False) for kind in KINDS), ("bfloat16", True)])
@pytest.mark.parametrize(("height", "width"), [(129, 577), (33, 2090), (2049, 70)])
def test_row_gives_the_same_bits_beside_any_others(
    isa: library.Mode, kind: WeightKind, height: int, width: int, narrow: bool
) -> None:
    packed = linear.pack_rows(TensorRows(draw(height, width)), kind, draw(height, seed=1), narrow=narrow)
    gated = linear.pack_rows(TensorRows(draw(96, width)), kind, narrow=narrow)
    x = draw(97, width, seed=2)
    alone = [(packed.apply(row), gated.apply_gated(row)) for row in x.split(1)]
    for rows in (2, 3, 4, 5, 6, 7, 8, 9, 13, 24, 97):
        found = zip(packed.apply(x[:rows]), gated.apply_gated(x[:rows]), alone[:rows], strict=True)
        assert all(torch.equal(a, b[0]) and torch.equal(c, d[0]) for a, c, (b, d) in found)


def multiply(packed: linear.Packed, x: torch.Tensor) -> list[torch.Tensor]:
    """Return products of few rows and many, with a residual and without, and gated."""
    residual = draw(len(x), packed.out_features, seed=9)
    return [packed.apply(x), packed.apply(x, residual), packed.apply(x[:1]), packed.apply_gated(x)]


@pytest.mark.parametrize("isa", ["avx512", "avx512_vnni", "avx512_bf16"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), [(128, 577), (96, 2090), (46, 45)])
def test_wider_vectors_give_the_same_bits(isa: library.Mode, kind: WeightKind, height: int, width: int) -> None:
    packed, x = linear.pack(draw(height, width), kind, bias=draw(height, seed=1)), draw(41, width, seed=2)
    found = multiply(packed, x)
    library.choose_kernels("avx2")
    assert all(map(torch.equal, found, multiply(packed, x)))


@pytest.mark.parametrize("narrow", [False, True])
def test_bfloat16_by_bfloat16_gives_the_same_bits_everywhere(isa: library.Mode, narrow: bool) -> None:
    rows, x = TensorRows(draw(96, 577)), draw(41, 577, seed=2).bfloat16().float()
    packed = linear.pack_rows(rows, "bfloat16", narrow=narrow)
    found = packed.apply(x), packed.apply(x[:1])
    library.choose_kernels("plain")
    plain = packed.apply(x), packed.apply(x[:1])
    if narrow and isa == "neon_bf16":  # whose products round sums otherwise, if as finely
        assert all(miss(mine, each.double()) < 2.0**-20 for mine, each in zip(found, plain, strict=True))
    else:
        assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("isa", ["avx512_bf16"], indirect=True)
def test_narrow_product_rounds_activations_to_bfloat16(isa: library.Mode) -> None:
    rows, x = TensorRows(draw(80, 577)), draw(9, 577, seed=2)
    narrow, wide = (linear.pack_rows(rows, "bfloat16", narrow=each) for each in (True, False))
    assert torch.equal(narrow.apply(x), wide.apply(x.bfloat16().float()))
    assert 2.0**-12 < miss(narrow.apply(x), x.double() @ wide.to_dense().double().T) < 2.0**-8


@pytest.mark.parametrize(("kind", "most"), list(zip(KINDS, (0.0, 2.0**-8, 0.008, 0.008, 0.11), strict=True)))
def test_weight_is_kept_as_precisely_as_its_kind_says(mode: library.Mode, kind: WeightKind, most: float) -> None:
    weight = draw(48, 96)
    packed = linear.pack(weight, kind)
    assert (packed.kind, packed.out_features, packed.in_features) == (kind, 48, 96)
    assert miss(packed.to_dense(), weight.double()) <= most
    assert torch.equal(packed.gather(torch.tensor([47, 0, 17])), packed.to_dense()[[47, 0, 17]])


def test_compiled_weight_takes_the_memory_of_its_bits() -> None:
    sizes = [linear.pack(draw(64, 128), kind).num_bytes * 8 / (64 * 128) for kind in KINDS]
    assert sizes == [32, 16, 8.5, 9, 5]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [48, 16, 20])  # an odd number of panels, one, and parts
def test_gated_product_is_gate_times_value(mode: library.Mode, kind: WeightKind, half: int) -> None:
    packed = linear.pack(draw(2 * half, 96), kind)
    x = draw(9, 96, seed=1)
    gates, values = (x.double() @ packed.to_dense().double().T).chunk(2, dim=1)
    assert miss(packed.apply_gated(x), functional.silu(gates) * values) < CLOSE[kind]
    gelu = functional.gelu(gates, approximate="tanh") * values
    assert miss(packed.apply_gated(x, "gelu_tanh"), gelu) < CLOSE[kind]


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.tuples(st.integers(1, 110), st.integers(1, 70), st.integers(1, 200)),
    magnitude=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]),
)
def test_compiled_product_suits_any_size(kind: WeightKind, shape: tuple[int, int, int], magnitude: float) -> None:
    rows, height, width = shape
    packed = linear.pack(draw(height, width, seed=height), kind)
    x = draw(rows, width, seed=width) * magnitude
    # What is rounded is rounded to a part of the largest in its group, which may be next to nothing in the sum.
    reach = x.abs().amax(1, keepdim=True).double() * packed.to_dense().double().abs().sum(1)
    error = (packed.apply(x) - x.double() @ packed.to_dense().double().T).abs()
    assert bool((error <= CLOSE[kind] * reach + 1e-30).all())


@pytest.mark.parametrize("kind", KINDS)
def test_product_shows_what_is_no_number(mode: library.Mode, kind: WeightKind) -> None:
    x = draw(3, 64)
    x[1, 40] = torch.nan
    found = linear.pack(draw(32, 64, seed=1), kind).apply(x)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def encode_blocks(form: Form, codes: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return a weight [out, groups, 32] of codes as the rows of a GGUF file."""
    heads = [scale.half().view(torch.uint8)] + ([low.half().view(torch.uint8)] if form == "Q4_1" else [])
    body = codes.to(torch.int8).view(torch.uint8) if form == "Q8_0" else codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([*heads, body.to(torch.uint8)], dim=-1).flatten(1)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_of_a_file_are_kept_to_the_bit(mode: library.Mode, form: Form) -> None:
    random = torch.Generator().manual_seed(0)
    span = (-127, 128) if form == "Q8_0" else (0, 16)
    codes = torch.randint(*span, (40, 3, 32), generator=random)
    scale, low = (torch.rand(40, 3, 1, generator=random) * size for size in (0.1, -0.7))
    offset = {"Q8_0": torch.zeros(()), "Q4_0": -8 * scale.half().float(), "Q4_1": low.half().float()}[form]
    packed = linear.pack_blocks(encode_blocks(form, codes, scale, low), form)
    assert torch.equal(packed.to_dense(), (codes * scale.half().float() + offset).flatten(1))


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(Unsupported, match="groups of 64"):
        linear.pack(draw(4, 64), "int4", group=64)
    with pytest.raises(Unsupported, match="Q9"):
        linear.pack_blocks(torch.zeros(4, 176, dtype=torch.uint8), "Q9")
    with pytest.raises(Unsupported, match="whole blocks"):
        linear.pack_blocks(torch.zeros(4, 33, dtype=torch.uint8), "Q8_0")


@pytest.mark.parametrize("x", [draw(2, 63), draw(2, 64).double(), draw(64), draw(64, 2).T])
def test_product_refuses_what_is_not_its_input(mode: library.Mode, x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"float32 \[rows, 64\]"):
        linear.pack(draw(4, 64), "float32").apply(x)


def test_parts_refuse_what_does_not_belong_together(mode: library.Mode) -> None:
    for kind in KINDS:
        for ids in ([0, 4], [-1]):
            with pytest.raises(IndexError, match="of a weight with 4"):
                linear.pack(draw(4, 64), kind).gather(torch.tensor(ids))
    with pytest.raises(ValueError, match="does not fit"):
        parts.normalize_rms(draw(2, 8), draw(9), 1e-6)
    for angles in (draw(2, 5), draw(3, 4)):
        with pytest.raises(ValueError, match="do not fit"):
            parts.rotate_halves(draw(2, 3, 8), angles, angles)


@pytest.mark.parametrize("dim", [1, 31, 64, 576])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_normalisation_divides_by_the_root_of_the_mean_square(mode: library.Mode, dim: int, offset: float) -> None:
    x, weight, residual = draw(5, dim) * 9, draw(dim, seed=1), draw(5, dim, seed=2)

    def expect(of: torch.Tensor) -> torch.Tensor:
        return of * torch.rsqrt(of.square().mean(-1, keepdim=True) + 1e-6) * (weight + offset)

    assert miss(parts.normalize_rms(x, weight, 1e-6, offset), expect(x.double())) < 1e-6
    total = residual.double() + x
    assert miss(parts.normalize_rms(x, weight, 1e-6, offset, residual), expect(total)) < 1e-6
    assert torch.allclose(residual.double(), total)


@pytest.mark.parametrize("dim", [8, 24, 40, 63, 64])
def test_numbers_that_fill_no_vector_are_added_as_if_zeros_followed(isa: library.Mode, dim: int) -> None:
    x = torch.nn.functional.pad(draw(50, dim), (0, 3 * dim))
    short = parts.normalize_rms(x[:, :dim].contiguous(), torch.ones(dim), 0.0)
    assert torch.equal(2 * short, parts.normalize_rms(x, torch.ones(4 * dim), 0.0)[:, :dim])


def test_normalisation_takes_heads_out_of_a_row(mode: library.Mode) -> None:
    mixed, weight = draw(5, 7, 16), draw(16, seed=1)
    assert torch.allclose(
        parts.normalize_rms(mixed[:, 2:5], weight, 1e-6), parts.normalize_rms(mixed, weight, 1e-6)[:, 2:5]
    )


@pytest.mark.parametrize("half", [3, 8])  # a part of the head, and all of it
def test_rotation_turns_pairs_and_leaves_the_rest(mode: library.Mode, half: int) -> None:
    mixed, angles = draw(5, 7, 16), draw(5, half, seed=1)
    given = mixed.clone()
    parts.rotate_halves(mixed[:, 2:5], angles.cos(), angles.sin())
    pairs = torch.complex(given[:, 2:5, :half], given[:, 2:5, half : 2 * half])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    wanted = given.clone()
    wanted[:, 2:5, : 2 * half] = torch.cat([turned.real, turned.imag], dim=-1)
    assert torch.allclose(mixed, wanted, atol=1e-6)


@pytest.mark.parametrize("count", [1, 8, 13])
def test_gates_hold_for_any_input(mode: library.Mode, count: int) -> None:
    ends = torch.tensor([-1e30, -200.0, -88.0, -20.0, -1e-3, 0.0, 0.5, 3.0, 88.0, 200.0, 1e30, 1.0, -1.0])
    both = torch.cat([ends[None, :count], draw(1, count)], dim=1)
    gate, value = both[:, :count], both[:, count:]
    assert torch.allclose(parts.multiply_silu(gate, value), functional.silu(gate) * value, rtol=2e-6, atol=1e-35)
    wanted = functional.gelu(gate.double(), approximate="tanh") * value
    assert torch.allclose(parts.multiply_gelu(gate, value).double(), wanted, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("count", [1, 7, 8, 33, 100])
def test_largest_is_found_where_it_is_first(mode: library.Mode, count: int) -> None:
    x = draw(count + 3, count)
    x[0, -1] = x[0, 0] = 9.0
    x[1] = -torch.inf
    x[2, count // 2] = torch.inf
    places, most = parts.find_largest(x)
    assert torch.equal(places, x.argmax(-1))
    assert torch.equal(most, x.amax(-1))
    x[range(count), range(count)] = torch.nan
    assert parts.find_largest(x)[1].isnan().tolist() == [True] * count + [False] * 3


def test_description_says_what_computes() -> None:
    library.choose_kernels("auto")
    library.set_threads(1)
    assert library.describe_kernels().endswith(", 1 threads")
    library.set_threads(library.count_cores())


def test_missing_library_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    choice = library.Choice()
    choice.decide("auto", library.FILE.with_name("nothing.so"))
    assert choice.library is None
    assert [record.message for record in caplog.records if "was not built" in record.message]


def test_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", signature.INTERFACE + 1)
    found, reason = library.open_library(library.FILE)
    assert found is None
    assert "reinstall parallax-backend-torch" in reason


def test_library_whose_records_are_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(signature.RECORDS, "plx_norm_bytes", signature.RopeRecord)
    found, reason = library.open_library(library.FILE)
    assert found is None
    assert "another RopeRecord; reinstall parallax-backend-torch" in reason


def test_instructions_the_processor_lacks_are_refused() -> None:
    native = library.find_library()
    assert native is not None
    foreign = "avx2" if "neon" in library.list_isas(native) else "neon"
    with pytest.raises(ParallaxError, match=f"cannot run the kernels for {foreign}") as refused:
        library.use_isa(native, foreign, "")
    assert "set PARALLAX_TORCH__KERNELS to auto, off, plain" in refused.value.hint
    with pytest.raises(ParallaxError, match=r"there are no kernels for avx2: nothing\.so was not built"):
        library.Choice().decide("avx2", library.FILE.with_name("nothing.so"))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_product_without_memory_is_an_error(kind: WeightKind) -> None:
    native, packed = library.find_library(), linear.pack(draw(32, 64), kind)
    assert native is not None
    assert isinstance(packed, PanelPacked)
    x, out = draw(1, 64), torch.full((1, 32), 7.0)
    with pytest.raises(MemoryError, match="not enough memory"):
        native.plx_multiply(packed.record, x.data_ptr(), 0, 1 << 45, out.data_ptr(), None, 0)
    assert bool((out == 7).all())  # nothing was done
    assert torch.equal(packed.apply(x), linear.pack(draw(32, 64), kind).apply(x))


HUGE = 1 << 44
"""Numbers in a row that no memory holds."""


ZERO, ONE = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)


def make_table() -> signature.TableRecord:
    """Return the table of one token in slot 0."""
    first = ZERO.data_ptr()
    return signature.TableRecord(first, first, first, ONE.data_ptr(), 1, 16)


def test_attention_without_memory_is_an_error() -> None:
    native, out = library.find_library(), torch.full((1, 8), 7.0)
    assert native is not None
    data, table = out.data_ptr(), make_table()
    record = signature.AttentionRecord(
        data, 8, data, data, data, None, None, pointer(table), None, 1, 1, HUGE, 0, 1.0, 0.0, 0, 0
    )
    with pytest.raises(MemoryError, match="not enough memory"):
        native.plx_attend(record)
    assert bool((out == 7).all())


def test_layers_without_memory_are_an_error() -> None:
    native, out = library.find_library(), torch.full((1, 8), 7.0)
    assert native is not None
    data, table = out.data_ptr(), make_table()
    weight = signature.WeightRecord(0, 0, HUGE, HUGE, data, None)
    layer = signature.LayerRecord(*[pointer(weight)] * 4)
    record = signature.AttentionRecord(
        data, 8, data, data, data, None, None, pointer(table), None, 1, 1, 8, 0, 1.0, 0.0, 0, 0
    )
    layers = (POINTER(signature.LayerRecord) * 1)(pointer(layer))
    attentions = (POINTER(signature.AttentionRecord) * 1)(pointer(record))
    rope = signature.RopeRecord(None, None, 0)
    with pytest.raises(MemoryError, match="not enough memory"):
        native.plx_layers(layers, attentions, 1, table, rope, table.pages, data, 1, data, data, None)
    assert bool((out == 7).all())


def test_weights_lie_together_and_go_with_the_last_of_them() -> None:
    native = library.find_library()
    assert native is not None
    file = arena.Arena()
    sizes = (5, 300, arena.BLOCK // 8 + 1, 7)
    places = [file.place(native, draw(2, size, seed=size).split(1), 2) for size in sizes]
    for place, size in zip(places, sizes, strict=True):
        assert place.data_ptr() % arena.LINE == 0
        assert torch.equal(place.view(torch.float32), draw(2, size, seed=size).flatten())
    blocks = [place.untyped_storage().data_ptr() for place in places]
    assert blocks[0] == blocks[1] != blocks[2] != blocks[3]
