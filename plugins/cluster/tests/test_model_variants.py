from __future__ import annotations

from parallax_cluster.model_variants import ModelVariants, Variant, describe_weights
from parallax_core.api import LayerRange, PlacedStage

VARIANTS = ModelVariants(model="/models/name", by_backend={"mlx": Variant("org/name-4bit")})


def test_node_loads_the_variant_of_its_best_backend() -> None:
    assert VARIANTS.note("mac", ("mlx", "torch")) == "org/name-4bit"
    assert VARIANTS.note("pc", ("torch", "mlx")) == VARIANTS.note("unknown", ()) == "/models/name"
    assert VARIANTS.find("mac") == VARIANTS.show("mac") == "org/name-4bit"
    assert VARIANTS.show("pc") == VARIANTS.show("never seen") == "name"
    assert str(VARIANTS) == "org/name-4bit on mlx; pipelines do not mix them"


def test_layers_of_stages_with_the_same_files_are_traced_together() -> None:
    for node, backend in (("mac", "mlx"), ("pc", "torch"), ("pc2", "torch")):
        VARIANTS.note(node, (backend,))
    nodes = {"pc": (0, 3), "pc2": (3, 5), "mac": (5, 9)}
    traced = VARIANTS.trace(PlacedStage(node, LayerRange(*layers)) for node, layers in nodes.items())
    assert traced == ((0, 5, "/models/name"), (5, 9, "org/name-4bit"))
    assert describe_weights(traced) == "layers 0-5 of name, 5-9 of org/name-4bit"
