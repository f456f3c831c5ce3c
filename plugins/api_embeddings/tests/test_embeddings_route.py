from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest

from parallax_api_embeddings import response
from parallax_api_embeddings.form import EmbeddingForm
from parallax_api_embeddings.response import finish_embedding
from parallax_core.api import Capability, Hidden, StageInfo, Tensor
from parallax_core.contracts.engine import Pooling
from parallax_core.models.pooling import EmbeddingConfig
from parallax_core.node.dtypes import convert
from parallax_core.testing.paged import show_state
from parallax_core.testing.toy import ToyStage
from tests.unit.server.letters import TOY, Letters, Site, error_of

TEXTS = ["hello", "a", "once upon a time there was a fox, and a dragon, and a letter " * 3]


def expect(text: str) -> list[float]:
    return list(struct.unpack("<f", show_state(TOY.states(Letters().encode(text))[-1]).data))


def expect_mean(text: str) -> float:
    states = TOY.states(Letters().encode(text))
    return math.fsum(struct.unpack("<f", show_state(state).data)[0] for state in states) / len(states)


def embed(site: Site, **fields: Any) -> Any:
    return site.post("/v1/embeddings", model="toy", **fields)


def test_embeddings_are_the_last_hidden_states(site: Site) -> None:
    reply = embed(site, input=TEXTS).json()
    assert [item["embedding"] for item in reply["data"]] == [expect(text) for text in TEXTS]
    assert [item["index"] for item in reply["data"]] == [0, 1, 2]
    num_tokens = sum(map(len, TEXTS))
    assert reply["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert (reply["object"], reply["model"]) == ("list", "toy")


def test_inputs_that_are_too_many_at_once_are_computed_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "AT_ONCE", 2)
    texts = ["hello", "a", "b", "hello you", "c"]
    reply = embed(site, input=texts).json()
    assert [item["embedding"] for item in reply["data"]] == [expect(text) for text in texts]
    assert [item["index"] for item in reply["data"]] == list(range(5))
    assert reply["usage"]["prompt_tokens"] == sum(map(len, texts))
    assert not site.service.running


def test_model_says_whether_it_embeds(site: Site) -> None:
    assert "embeddings" not in site.client.get("/v1/models/toy").json()["capabilities"]
    site.text.can_embed = True
    assert "embeddings" in site.client.get("/v1/models/toy").json()["capabilities"]


@pytest.mark.parametrize("value", ["hello", ["hello"], list(Letters().encode("hello")), [Letters().encode("hello")]])
def test_input_is_a_text_or_tokens(site: Site, value: Any) -> None:
    assert embed(site, input=value).json()["data"] == [
        {"object": "embedding", "index": 0, "embedding": expect("hello")}
    ]


def test_prompt_in_the_cache_gives_the_same_embedding(site: Site) -> None:
    first, again = (embed(site, input=TEXTS[2]).json()["data"] for _ in range(2))
    assert first == again
    assert site.engine.stats()[0].cached_tokens > 0


def test_embeddings_are_the_means_of_the_hidden_states(site: Site) -> None:
    site.text.embedding_config = EmbeddingConfig("mean", normalizes=False, dimensions=None)
    for _ in range(2):
        reply = embed(site, input=TEXTS).json()
        assert [item["embedding"] for item in reply["data"]] == [pytest.approx([expect_mean(text)]) for text in TEXTS]
    assert site.engine.stats()[0].cached_tokens == 0
    again = site.post("/v1/completions", model="toy", prompt=TEXTS[2], max_tokens=1).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_many_inputs_and_answers_at_the_same_time_do_not_mix(site: Site) -> None:
    texts = [chr(97 + number % 26) * (1 + number % 50) for number in range(200)]
    reply = embed(site, input=texts).json()
    assert [item["embedding"] for item in reply["data"]] == list(map(expect, texts))


def test_official_client_reads_both_encodings(site: Site) -> None:
    client = openai.OpenAI(base_url="http://testserver/v1", api_key="x", http_client=site.client, max_retries=0)
    for encoding in ({}, {"encoding_format": "float"}):
        found = client.embeddings.create(model="toy", input=TEXTS, **encoding)  # type: ignore[arg-type]
        assert [item.embedding for item in found.data] == [expect(text) for text in TEXTS]
    [raw] = embed(site, input="hello", encoding_format="base64").json()["data"]
    assert list(struct.unpack("<f", base64.b64decode(raw["embedding"]))) == expect("hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "a" * 500}, "input"),
        ({"input": "a", "dimensions": 1}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({}, "input"),
    ],
)
def test_field_that_cannot_be_honoured_is_refused_by_name(site: Site, fields: dict[str, Any], param: str) -> None:
    assert error_of(embed(site, **fields))["param"] == param


class StatelessStage(ToyStage):
    able: frozenset[Capability] = frozenset({"logprobs"})

    @property
    def info(self) -> StageInfo:
        return replace(super().info, capabilities=self.able)


class LastStateStage(StatelessStage):
    able: frozenset[Capability] = frozenset({"logprobs", "hidden"})


@pytest.mark.parametrize(
    ("kind", "pooling", "embeds"),
    [
        (ToyStage, "last", True),
        (ToyStage, "mean", True),
        (LastStateStage, "last", True),
        (LastStateStage, "mean", False),
        (StatelessStage, "last", False),
        (StatelessStage, "mean", False),
    ],
)
def test_capability_is_what_the_route_does(kind: type[ToyStage], pooling: Pooling, *, embeds: bool) -> None:
    site = Site()
    site.stage, site.text.can_embed = kind(TOY), True
    site.text.embedding_config = EmbeddingConfig(pooling, normalizes=False, dimensions=None)
    with site:
        assert embed(site, input="hello").status_code == (200 if embeds else 400)
        assert ("embeddings" in site.client.get("/v1/models/toy").json()["capabilities"]) == embeds


def test_backend_without_hidden_states_is_a_400() -> None:
    site = Site()
    site.stage = StatelessStage(TOY)
    with site:
        error = error_of(embed(site, input="hello"))
    assert (error["param"], error["message"][:76]) == (
        "model",
        "an embedding is not available: this model's backend gives no hidden states; ",
    )


class UnsoundStage(ToyStage):
    """Computes a state that is no number, in a layer whose keys no later token needs."""

    def show_hidden(self, output: Hidden, states: Sequence[int]) -> Tensor:
        return Tensor("float32", (1,), struct.pack("<f", math.nan))


def test_embedding_that_is_no_number_is_an_error() -> None:
    site = Site()
    site.stage = UnsoundStage(TOY)
    with site:
        reply = embed(site, input=["hello", "world"])
    assert reply.status_code == 500
    assert "not made of finite numbers" in reply.json()["error"]["message"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_embedding_is_cut_and_then_normalized(dtype: str) -> None:
    tensor = convert(Tensor("float32", (4,), struct.pack("<4f", 3.0, 4.0, 12.0, 84.0)), dtype)
    form = EmbeddingForm(is_base64=False, dimensions=2, normalizes=True)
    assert finish_embedding(tensor, form) == array("f", [0.6, 0.8])
    whole = finish_embedding(tensor, EmbeddingForm(is_base64=False, dimensions=None, normalizes=True))
    assert math.hypot(*whole) == pytest.approx(1)
    zero = Tensor("float32", (2,), bytes(8))
    assert finish_embedding(zero, form) == array("f", [0.0, 0.0])


def test_dimensions_are_those_of_the_model(site: Site) -> None:
    site.text.embedding_config = EmbeddingConfig("last", normalizes=False, dimensions=(1, 8))
    assert embed(site, input="hello", dimensions=1).json()["data"][0]["embedding"] == expect("hello")
    assert "it has 1, 8" in error_of(embed(site, input="hello", dimensions=2))["message"]
    assert "embeddings of this model have 1" in error_of(embed(site, input="hello", dimensions=8))["message"]
