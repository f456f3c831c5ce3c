from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.models.pooling import EmbeddingConfig, read_embedding_config

PREFIX = "sentence_transformers.models."
MODULES = [{"idx": 0, "name": "0", "path": "", "type": f"{PREFIX}Transformer"}]
MODULES += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{PREFIX}Pooling"}]
NORMALIZE = [{"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{PREFIX}Normalize"}]
LAST = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def write(folder: Path, modules: Any = None, pooling: Any = None, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize(
    ("modules", "pooling", "config", "expected"),
    [
        (MODULES, LAST, {}, EmbeddingConfig("last", normalizes=False, dimensions=None)),
        (MODULES + NORMALIZE, LAST, {"is_matryoshka": True}, EmbeddingConfig("last", normalizes=True, dimensions=())),
        (MODULES, {"pooling_mode_mean_tokens": True}, {}, EmbeddingConfig("mean", normalizes=False, dimensions=None)),
        (MODULES, {"pooling_mode": "mean"}, {}, EmbeddingConfig("mean", normalizes=False, dimensions=None)),
        (None, {"pooling_mode": "lasttoken"}, {}, EmbeddingConfig("last", normalizes=False, dimensions=None)),
        (
            MODULES,
            LAST,
            {"matryoshka_dimensions": [8, 4]},
            EmbeddingConfig("last", normalizes=False, dimensions=(8, 4)),
        ),
    ],
)
def test_configuration_of_sentence_transformers_is_read(
    tmp_path: Path, modules: Any, pooling: Any, config: dict[str, Any], expected: EmbeddingConfig
) -> None:
    assert read_embedding_config(write(tmp_path, modules, pooling, **config)) == expected


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        (None, None, "makes no embeddings"),
        (MODULES, {**LAST, "pooling_mode_mean_tokens": True}, "mean_tokens, lasttoken"),
        (MODULES, {"pooling_mode_max_tokens": True}, "is not supported: max_tokens"),
        (MODULES, {"pooling_mode": "cls"}, "is not supported: cls"),
        (MODULES, {}, "is not supported: none"),
        ([*MODULES, {"path": "2_Dense", "type": f"{PREFIX}Dense"}], LAST, "Transformer, Pooling, Dense"),
        ([], LAST, "it has the modules"),
    ],
)
def test_model_without_supported_embeddings_is_refused(tmp_path: Path, modules: Any, pooling: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_embedding_config(write(tmp_path, modules, pooling))
    assert caught.value.param == "model"


@pytest.mark.parametrize("config", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_model_whose_tokens_attend_to_later_ones_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="attend to later ones") as caught:
        read_embedding_config(write(tmp_path, MODULES, LAST, **config))
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("modules", "pooling"),
    [
        ({"a": 1}, LAST),
        ([1, 2], LAST),
        (7, LAST),
        (MODULES, None),
        (MODULES, [1]),
        ([MODULES[0], {**MODULES[1], "path": "../elsewhere"}], LAST),
    ],
)
def test_damaged_file_is_an_error_of_the_server(tmp_path: Path, modules: Any, pooling: Any) -> None:
    with pytest.raises(ParallaxError) as caught:
        read_embedding_config(write(tmp_path, modules, pooling))
    assert not isinstance(caught.value, InvalidRequest)
