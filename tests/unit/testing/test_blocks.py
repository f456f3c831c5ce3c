"""The blocks that tests bring are those core passes, and a damaged model is left to the backend."""

from __future__ import annotations

import json
from pathlib import Path

from parallax_core.api import StagePlan
from parallax_core.testing.blocks import bring_blocks
from parallax_models.plugin import parallax_register_models


def test_plan_gets_the_blocks_of_the_installed_adapter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    [spec] = [spec for spec in parallax_register_models() if spec.name == "qwen3"]
    plan = StagePlan(model=tmp_path)
    assert bring_blocks(plan, "torch").blocks is spec.blocks["torch"].load()
    assert bring_blocks(plan, "numpy").blocks is None
    own = StagePlan(model=tmp_path, blocks="own")
    assert bring_blocks(own, "torch") is own


def test_plan_of_a_damaged_model_stays_as_it_is(tmp_path: Path) -> None:
    plan = StagePlan(model=tmp_path)
    assert bring_blocks(plan, "torch") is plan
