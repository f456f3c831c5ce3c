"""The tables of request fields match the schema: every field, its meaning, and the backends that support it.

Run this file to write them into the page.
"""

from __future__ import annotations

import json
import math
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

from parallax_api_anthropic.body_models import MessagesRequest
from parallax_api_embeddings.body_models import EmbeddingRequest
from parallax_api_openai.completion_request import CompletionRequest
from parallax_api_responses.body_models import ResponsesRequest
from parallax_chat_requests.request_models import STRUCTURED, ChatRequest, Generation
from parallax_core.api import BackendSpec, StagePlan
from parallax_core.server.fields import Strict
from parallax_core.testing.blocks import bring_blocks
from parallax_openapi.field_docs import read_field_docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/http.md"

NEEDS = {"logprobs": "logprobs", "top_logprobs": "logprobs", **dict.fromkeys(STRUCTURED, "masks")}
"""Fields that need a capability of the stage, and the capability."""

WITH_ALL = frozenset({"embedding", "message", "response"})
"""The requests whose tables have all of their fields, also those that others have."""

LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    "model.norm.weight": (8,),
    **{f"{LAYER}{name}_layernorm.weight": (8,) for name in ("input", "post_attention")},
    **{f"{LAYER}self_attn.{name}_proj.weight": (8, 8) for name in "qkvo"},
    **{f"{LAYER}mlp.{name}_proj.weight": (8, 8) for name in ("gate", "up", "down")},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 16,
}


def save_model(folder: Path) -> None:
    """Save a model of one layer with zero weights, enough to read its capabilities."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    entries, place = {}, 0
    for name, shape in SHAPES.items():
        end = place + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, end]}
        place = end
    head = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(place))


def list_backends(model: Path) -> dict[str, frozenset[str]]:
    """Return the capabilities of the stages of each backend in this repository."""
    modules = [import_module(f"parallax_{folder.name}.plugin") for folder in sorted(ROOT.glob("plugins/backend_*"))]
    specs: list[BackendSpec] = []
    for module in modules:
        specs += getattr(module, "parallax_register_backends", list)()
    found: dict[str, frozenset[str]] = {}
    for spec in (each for each in specs if each.opens[0] == "stage"):
        plan = bring_blocks(StagePlan(model=model, memory_fraction=0.001), spec.name)
        stage = spec.factory.load()().open_stage(plan)
        found[spec.name] = frozenset(stage.info.capabilities)
        stage.close()
    return found


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, frozenset[str]]:
    model = tmp_path_factory.mktemp("model")
    save_model(model)
    return list_backends(model)


class Tables:
    """The tables of the page, by heading."""

    def __init__(self, backends: dict[str, frozenset[str]]) -> None:
        self._backends = backends
        special = {"max_tokens"}  # of both, with defaults of their own
        common = [name for name in Generation.model_fields if name not in special]
        self.texts = {"## Fields of every request": self._make(Generation, common)}
        kinds: dict[str, type[Strict]] = {
            "chat": ChatRequest,
            "completion": CompletionRequest,
            "embedding": EmbeddingRequest,
            "message": MessagesRequest,
            "response": ResponsesRequest,
        }
        for kind, model in kinds.items():
            own = [name for name in model.model_fields if name not in common or kind in WITH_ALL]
            article = "an" if kind == "embedding" else "a"
            self.texts[f"## Fields of {article} {kind} request"] = self._make(model, own)

    def _make(self, model: type[Strict], names: list[str]) -> str:
        titles = " | ".join(f"`{name}`" for name in self._backends)
        head = f"| Field | Meaning | {titles} |\n|---|---|{'---|' * len(self._backends)}"
        return "\n".join([head, *(self._describe(model, name) for name in names)])

    def _describe(self, model: type[Strict], name: str) -> str:
        meaning = " ".join(read_field_docs(model).get(name, "").replace("``", "`").split()).rstrip(".")
        honoured = ["yes" if NEEDS.get(name, "") in {"", *able} else "a 400" for able in self._backends.values()]
        return f"| `{name}` | {meaning[0].lower() + meaning[1:]} | {' | '.join(honoured)} |"


def find_table(page: str, heading: str) -> str:
    """Return the table below a heading."""
    section = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return section[section.index("| Field") :].partition("\n\n")[0].rstrip()


def test_tables_of_fields_are_those_of_schema_and_backends(backends: dict[str, frozenset[str]]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for heading, table in Tables(backends).texts.items():
        assert find_table(page, heading) == table, f"{heading}: run {Path(__file__).name}"


def test_field_that_a_backend_cannot_honour_is_shown_as_a_400() -> None:
    table = Tables({"able": frozenset({"logprobs"}), "other": frozenset()}).texts["## Fields of a chat request"]
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()}
    assert lines["`top_logprobs`"].endswith("| yes | a 400 |")
    assert lines["`messages`"].endswith("| yes | yes |")


def test_every_field_says_what_it_means() -> None:
    models = (ChatRequest, CompletionRequest, EmbeddingRequest, MessagesRequest, ResponsesRequest)
    assert [name for model in models for name in model.model_fields.keys() - read_field_docs(model).keys()] == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        text = PAGE.read_text(encoding="utf-8")
        for title, content in Tables(list_backends(Path(folder))).texts.items():
            before, heading, after = text.partition(f"\n{title}\n")
            text = before + heading + after.replace(find_table(text, title), content, 1)
        PAGE.write_text(text, encoding="utf-8")
