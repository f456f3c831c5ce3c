from __future__ import annotations

from parallax_core.contracts.model import LayerShape, ModelShape
from parallax_core.deploy.layer_weights import weigh_layers


def shape(*, is_tied: bool, num_layers: int = 3) -> ModelShape:
    return ModelShape(
        hidden_size=4,
        vocab_size=25,
        context_length=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        layers=(LayerShape(kind="full", weights=1000, active_weights=300),) * num_layers,
        before_weights=100,
        after_weights=4 if is_tied else 104,
        is_tied=is_tied,
    )


def test_token_meets_the_head_in_the_last_layer() -> None:
    assert weigh_layers(shape(is_tied=True)) == (300, 300, 400)
    assert weigh_layers(shape(is_tied=False)) == (300, 300, 404)
