"""What do compact answers under JSON schemas save, and do as many of them end and are valid?

    python -m benchmarks.compact_json MODEL_FOLDER --out benchmarks/results/compact-json.json

Answers of the real model at temperature 1, behind `parallax serve`, over 200 schemas made from seeds: nested objects,
arrays, bounded and unbounded strings and integers, enumerations and unions. Each schema is asked for twice with the
same seed: compact, which is the default, and with a new line and indentation allowed between any two parts, which was
the default before. `jsonschema` checks every answer; one that `max_tokens` cuts off is not valid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
from openai import AsyncOpenAI

from benchmarks.clients import serve
from benchmarks.random_schemas import make_object
from benchmarks.record import describe_run, write_report

COUNT = 200
MOST_TOKENS = 200
AT_ONCE = 32
SPACED = r"(\n[ \t]{0,40}|[ ])"
"""The white space that answers could have before."""
UNBOUNDED = {"maxLength", "maximum", "exclusiveMaximum"}
"""Keywords that every other schema lacks."""

Answer = tuple[bool, int]
"""Whether it is valid, and its number of tokens."""


def make_schema(seed: int) -> dict[str, Any]:
    """Return the schema of a seed; those of odd seeds have integers and strings without an upper bound."""
    schema = make_object(random.Random(seed), 2)
    return schema if seed % 2 == 0 else drop_bounds(schema)


def drop_bounds(part: Any) -> Any:
    """Return a schema without upper bounds of integers and strings."""
    if isinstance(part, list):
        return [drop_bounds(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {name: drop_bounds(value) for name, value in part.items() if name not in UNBOUNDED}


async def ask(client: AsyncOpenAI, model: str, seed: int, whitespace: str | None) -> Answer:
    """Return how the answer of a seed fares."""
    schema = make_schema(seed)
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Describe a thing as JSON with {', '.join(schema['properties'])}."}],
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
        temperature=1,
        seed=seed,
        max_tokens=MOST_TOKENS,
        extra_body={} if whitespace is None else {"structured_outputs": {"whitespace_pattern": whitespace}},
    )
    assert answer.usage is not None
    try:
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)
    except (ValueError, jsonschema.ValidationError):
        return False, answer.usage.completion_tokens
    return answer.choices[0].finish_reason == "stop", answer.usage.completion_tokens


async def ask_all(url: str, model: str) -> dict[str, list[Answer]]:
    """Return the answers of both kinds, in the order of the seeds."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def run(seed: int, whitespace: str | None) -> Answer:
        async with gate:
            return await ask(client, model, seed, whitespace)

    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=5) as client:
        asked = [(run(seed, None), run(seed, SPACED)) for seed in range(COUNT)]  # in turns: both meet the same load
        found = await asyncio.gather(*(each for pair in asked for each in pair))
    return {"compact": found[::2], "spaced": found[1::2]}


def describe(answers: dict[str, list[Answer]]) -> dict[str, Any]:
    """Return the shares of valid answers, and the tokens of those that are valid in both kinds."""
    both = [pair for pair in zip(*answers.values(), strict=True) if all(is_valid for is_valid, _ in pair)]
    tokens = [sum(count for _, count in column) / len(both) for column in zip(*both, strict=True)]
    return {
        kind: {
            "valid": sum(is_valid for is_valid, _ in found),
            "share valid": sum(is_valid for is_valid, _ in found) / len(found),
            "tokens per answer": round(sum(count for _, count in found) / len(found), 1),
            "tokens where both are valid": round(mean, 1),
        }
        for (kind, found), mean in zip(answers.items(), tokens, strict=True)
    } | {"answers of each kind": COUNT, "both valid": len(both)}


def main(args: Sequence[str] | None = None) -> None:
    """Ask for the answers and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(args)
    run = describe_run(["benchmarks.compact_json", "MODEL"], ["llguidance", "jsonschema"])
    with serve(given.model, "--set", "generation_config=off", "--backend", "torch", "--dtype", "bfloat16") as url:
        answers = asyncio.run(ask_all(url, given.model.name))
    report = {"run": run, **describe(answers)}
    write_report(given.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
