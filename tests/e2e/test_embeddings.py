"""Embeddings of a real server equal the hidden states of transformers, whole and in stages, on each backend."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import openai
import pytest
import torch

from tests.e2e.conftest import start_server
from tests.e2e.tiny import write_tiny

PROMPTS = [[1], [17, 400, 3], list(range(100, 260))]
MODULES = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
MODULES += [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
MODULES += [{"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]


class Embedder(NamedTuple):
    """A random model for embeddings, and those of `PROMPTS` by transformers."""

    folder: Path
    expected: list[list[float]]


@pytest.fixture(scope="module")
def embedder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Embedder:
    """Write the model, and compute as sentence-transformers does."""
    folder = write_tiny(tmp_path_factory.mktemp("model") / "tiny", model_folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{request.param}": True}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [16]}))
    return Embedder(folder, list(compute_embeddings(folder, is_mean=request.param == "mean_tokens")))


def compute_embeddings(folder: Path, *, is_mean: bool) -> Iterator[list[float]]:
    """Yield the pooled last hidden states of transformers, normalized."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt in PROMPTS:
        with torch.no_grad():
            states = model(torch.tensor([prompt])).last_hidden_state[0].numpy()
        state = states.mean(axis=0) if is_mean else states[-1]
        yield list(state / np.linalg.norm(state))


WHOLE: dict[str, tuple[str, ...]] = {name: ("--backend", name) for name in ("mlx", "torch")}
STAGES = {name: (*options, "--stages", "3", "--set", "max_batch_tokens=50") for name, options in WHOLE.items()}


@pytest.mark.parametrize(
    ("embedder", "options"),
    [
        pytest.param("lasttoken", WHOLE["mlx"], marks=pytest.mark.nightly),
        ("lasttoken", STAGES["mlx"]),
        pytest.param("lasttoken", WHOLE["torch"], marks=pytest.mark.nightly),
        pytest.param("lasttoken", STAGES["torch"], marks=pytest.mark.nightly),
        pytest.param("mean_tokens", WHOLE["mlx"], marks=pytest.mark.nightly),
        pytest.param("mean_tokens", STAGES["mlx"], marks=pytest.mark.nightly),
        ("mean_tokens", WHOLE["torch"]),
        pytest.param("mean_tokens", STAGES["torch"], marks=pytest.mark.nightly),
    ],
    indirect=["embedder"],
)
def test_embeddings_are_those_of_transformers(
    embedder: Embedder, model_home: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    server = start_server(model_home, tmp_path / "log", "--dtype", "float32", *options, model=str(embedder.folder))
    try:
        client = openai.OpenAI(base_url=server.url, api_key="x", max_retries=0)
        found = client.embeddings.create(model="tiny", input=PROMPTS)
        for item, state in zip(found.data, embedder.expected, strict=True):
            np.testing.assert_allclose(item.embedding, state, atol=2e-5)
        assert found.usage.prompt_tokens == sum(map(len, PROMPTS))
        cut = client.embeddings.create(model="tiny", input=PROMPTS[1], dimensions=16).data[0].embedding
        start = np.array(embedder.expected[1][:16])
        np.testing.assert_allclose(cut, start / np.linalg.norm(start), atol=5e-5)
        assert "embeddings" in client.models.retrieve("tiny").model_dump()["capabilities"]
    finally:
        server.end(signal.SIGTERM)
