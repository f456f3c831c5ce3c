"""``/v1/models``: what it says of the models that are served."""

from __future__ import annotations

from parallax_core.api import Sampling
from parallax_core.models.generation_config import RequestDefaults
from tests.unit.server.letters import Site


def test_models_lists_the_one_served(site: Site) -> None:
    body = site.client.get("/v1/models").json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["toy"]
    assert site.client.get("/v1/models/toy").json() == body["data"][0]
    site.text.defaults = RequestDefaults(Sampling(temperature=0.2, top_p=0.9), max_tokens=8)
    stated = site.client.get("/v1/models/toy").json()["default_sampling_params"]
    assert stated == {"temperature": 0.2, "top_p": 0.9, "max_tokens": 8}


def test_model_says_what_it_can_hold_and_do(site: Site) -> None:
    model = site.client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["object"], model["owned_by"], model["max_model_len"]) == (
        "toy",
        "model",
        "parallax",
        400,
    )
    assert model["capabilities"][:2] == ["completion", "chat"]
    site.text.can_chat = False
    assert site.client.get("/v1/models/toy").json()["capabilities"] == ["completion"]
