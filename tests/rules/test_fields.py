"""The tables of request fields are those of the schema: every field, what it means, and who honours it.

Run this file to have them printed, to be put into the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.server.schema import ChatRequest, CompletionRequest, Generation

PAGE = (Path(__file__).parents[2] / "docs/reference/http.md").read_text(encoding="utf-8")

NEEDS = {"logprobs": "logprobs", "top_logprobs": "logprobs"}
"""The capability of a stage that a field needs, where it needs one."""

BACKENDS = {"MLX": frozenset({"logprobs"})}
"""What the stages of each backend can do; their own tests hold them to it."""


def describe(model: type[Generation], name: str) -> str:
    """Return the line of one field."""
    meaning = " ".join((model.model_fields[name].description or "").replace("``", "`").split()).rstrip(".")
    honoured = ["yes" if NEEDS.get(name, "") in {"", *able} else "a 400" for able in BACKENDS.values()]
    return f"| `{name}` | {meaning[0].lower() + meaning[1:]} | {' | '.join(honoured)} |"


def make_table(model: type[Generation], names: list[str]) -> str:
    """Return the table of some fields."""
    head = f"| Field | Meaning | {' | '.join(BACKENDS)} |\n|---|---|{'---|' * len(BACKENDS)}"
    return "\n".join([head, *(describe(model, name) for name in names)])


def list_tables() -> dict[str, str]:
    """Return the tables by heading."""
    own = {"max_tokens"}  # of both, with defaults of their own
    common = [name for name in Generation.model_fields if name not in own]
    return {
        "## Fields of every request": make_table(Generation, common),
        "## Fields of a chat request": make_table(
            ChatRequest, [name for name in ChatRequest.model_fields if name not in common]
        ),
        "## Fields of a completion request": make_table(
            CompletionRequest, [name for name in CompletionRequest.model_fields if name not in common]
        ),
    }


@pytest.mark.parametrize("heading", list_tables())
def test_table_of_fields_is_that_of_the_schema(heading: str) -> None:
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    assert list_tables()[heading] in section


def test_every_field_says_what_it_means() -> None:
    fields = [*ChatRequest.model_fields.items(), *CompletionRequest.model_fields.items()]
    assert [name for name, field in fields if not field.description] == []


if __name__ == "__main__":
    for heading, table in list_tables().items():
        print(f"{heading}\n\n{table}\n")
