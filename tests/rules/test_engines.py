"""The table of what each backend honours is that of the backends' capabilities, which import no engine.

Run this file to write it into the page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import get_args

from parallax_chat_requests.fields import MAX_TOP
from parallax_core.api import (
    BackendSpec,
    Capability,
    EngineSpec,
    Grammar,
    InvalidRequest,
    LayerRange,
    Request,
    RequestField,
    RequestId,
    Sampling,
    StageInfo,
)
from parallax_core.contracts.engine import MAX_ANSWERS
from parallax_core.engine.validate import RequestValidator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/engines.md"
FIRST = "| Field of a request |"

REQUEST = Request(id=RequestId("a"), prompt=(1,), max_tokens=1, sampling=Sampling(), stop_ids=frozenset({2}))
VALUES: Mapping[str, object] = {
    "logprobs": 1,
    "prompt_logprobs": 1,
    "priority": 1,
    "adapter": "mine",
    "salt": "mine",
    "grammar": Grammar(kind="regex", source="a"),
}
"""A value for each field of a request, in place of its default."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a backend honours with whole models, or with stages."""

    title: str
    honours: Collection[str]
    seed: str
    max_answers: int
    max_logprobs: int
    releases: str = ""


def describe_engine(name: str, spec: EngineSpec) -> Column:
    """Return the column of an engine that serves whole models."""
    return Column(
        title=f"`{name}`, whole model",
        honours=spec.honours,
        seed=spec.seed,
        max_answers=spec.max_answers,
        max_logprobs=spec.max_logprobs,
        releases=spec.supported,
    )


def describe_stage(name: str, capabilities: frozenset[Capability], releases: str) -> Column:
    """Return the column of a backend's stages: core itself honours what needs no capability."""
    return Column(
        title=f"`{name}`, stage",
        honours=[field for field in get_args(RequestField) if is_taken(field, capabilities)],
        seed="exact",
        max_answers=MAX_ANSWERS,
        max_logprobs=MAX_TOP,
        releases=releases,
    )


def is_taken(field: str, capabilities: frozenset[Capability]) -> bool:
    """Return whether core takes a request with the field for stages with these capabilities."""
    if field in Sampling.__struct_fields__:
        return True  # draws are the same on every backend
    info = StageInfo(
        layers=LayerRange(0, 1),
        num_layers=1,
        vocab_size=9,
        context_length=9,
        max_batch_tokens=9,
        pools=(),
        device="",
        dtype="float32",
        weight_bytes=0,
        weights_version="",
        capabilities=capabilities,
    )
    try:
        RequestValidator((info,), 9).check(replace(REQUEST, **{field: VALUES[field]}))  # type: ignore[arg-type]
    except InvalidRequest as error:
        return error.param != field
    return True


def list_columns() -> Iterator[Column]:
    """Yield the columns of each backend of this repository; one that opens stages has a module ``capabilities``."""
    for folder in sorted(ROOT.glob("plugins/backend_*")):
        package = f"parallax_{folder.name}"
        specs: list[BackendSpec] = import_module(f"{package}.plugin").parallax_register_backends()
        for spec in specs:
            engine = None if spec.engine is None else spec.engine.load()
            if engine is not None:
                yield describe_engine(spec.name, engine)
            if "stage" in spec.opens:
                found = import_module(f"{package}.capabilities").STAGE_CAPABILITIES
                yield describe_stage(spec.name, found, "" if engine is None else engine.supported)


def make_table(columns: Collection[Column]) -> str:
    """Return the table: a line for each field."""
    lines = [
        [f"`{field}`", *("yes" if field in column.honours else "a 400" for column in columns)]
        for field in get_args(RequestField)
    ]
    lines += [
        ["the largest `n`", *(str(column.max_answers) for column in columns)],
        ["the largest `logprobs`", *(str(column.max_logprobs) for column in columns)],
        ["`seed`", *(column.seed for column in columns)],
        ["supported releases", *(f"`{column.releases}`" if column.releases else "" for column in columns)],
    ]
    head = [f"{FIRST} {' | '.join(column.title for column in columns)} |", f"|---|{'---|' * len(columns)}"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)])


def find_table(page: str) -> str:
    """Return the table in the page."""
    return page[page.index(FIRST) :].partition("\n\n")[0].rstrip()


def test_table_of_engines_is_that_of_their_capabilities() -> None:
    assert find_table(PAGE.read_text(encoding="utf-8")) == make_table(list(list_columns())), (
        f"run {Path(__file__).name}"
    )


def test_table_has_every_backend_that_opens_stages_and_engines() -> None:
    titles = {column.title for column in list_columns()}
    assert titles >= {f"`{name}`, stage" for name in ("mlx", "torch", "vllm", "sglang")}
    assert titles >= {f"`{name}`, whole model" for name in ("vllm", "sglang")}


def test_field_that_an_engine_lacks_is_a_400() -> None:
    spec = EngineSpec(module="m", distributions=("m",), supported=">=1", builds={}, honours=frozenset({"top_k"}))
    table = make_table([describe_engine("m", spec)])
    assert "| `top_k` | yes |" in table
    assert "| `min_p` | a 400 |" in table


def test_field_that_stages_lack_is_a_400() -> None:
    table = make_table([describe_stage("m", frozenset({"logprobs"}), "")])
    assert "| `prompt_logprobs` | yes |" in table
    assert "| `grammar` | a 400 |" in table
    assert "| `adapter` | a 400 |" in table
    assert "| `grammar` | yes |" in make_table([describe_stage("m", frozenset({"masks"}), "")])


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(find_table(text), make_table(list(list_columns()))), encoding="utf-8")
