"""Do answers under JSON schemas finish, are they valid, and how long do refusals take?

    python -m benchmarks.schemas --out benchmarks/results/schemas.json

Answers at temperature 1 over 100 schemas made from seeds: nested objects, arrays, bounded strings, enumerations, ranges
and unions; by the real model behind `parallax serve`, on each backend in one stage and in three. `jsonschema`, which
shares no code with the library that makes the masks, checks every answer that finishes; those that end by their length
are counted as ``length``. ``slow schemas``: the times to refuse a schema of 2 MB that takes half a minute to compile.
``suite``: the JSON-Schema-Test-Suite, which the sources of `jsonschema` contain.

Each part is written when it is done and skipped by the next run. What masks cost is in `benchmarks.peers base`.
"""

from __future__ import annotations

import asyncio
import json
import random
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
from openai import AsyncOpenAI, BadRequestError

from benchmarks.record import describe_run, download, find_model, make_parser, read_report, write_report
from benchmarks.servers import serving
from parallax_core.api import BackendFailed, Grammar, InvalidRequest
from parallax_core.models.tokenizer import ModelTokenizer

Figures = dict[str, Any]
PLAIN = ("--set", "generation_config=off")
"""For draws at temperature 1 from all tokens: the model's own defaults keep the most probable ones only."""
TORCH, MLX = ("--backend", "torch", "--dtype", "bfloat16"), ("--backend", "mlx")
SERVED = {"torch": (TORCH, 4500), "torch in 3 stages": ((*TORCH, "--stages", "3"), 5000)}
SERVED |= {"mlx": (MLX, 250), "mlx in 3 stages": ((*MLX, "--stages", "3"), 250)}
"""The options of the server, and the answers; fewer on MLX, which is several times slower on a CPU than PyTorch."""
NAMES = ("name", "age", "city", "tags", "kind", "size", "note", "items")
NUM_SCHEMAS, MOST_TOKENS, AT_ONCE, TIMES = 100, 300, 32, 10
HOSTILE = {
    "type": "object",
    "properties": {f"field{number:06}": {"type": "integer", "multipleOf": 999_983} for number in range(36_000)},
}
DRAFT = "json/tests/draft2020-12/"
"""The folder of the suite's tests in the sources."""


def make_schema(source: random.Random, depth: int) -> Figures:
    kind = source.choice(["object", "object", "array", "union", "leaf", "leaf", "leaf"] if depth else ["leaf"])
    if kind == "object":
        return make_object(source, depth)
    if kind == "array":
        least, most = source.randrange(2), 1 + source.randrange(4)
        return {"type": "array", "items": make_schema(source, depth - 1), "minItems": least, "maxItems": most}
    if kind == "union":
        return {"anyOf": [make_schema(source, depth - 1) for _ in range(2)]}
    low = source.randrange(5)
    leaves: list[Figures] = [
        {"type": "boolean"},
        {"type": "integer", "minimum": low, "maximum": low + 50},
        {"type": "integer", "minimum": -low, "exclusiveMaximum": 100},
        {"type": "string", "minLength": low, "maxLength": low + 12},
        {"enum": source.sample(["red", "green", "blue", 1, 2, None], 3)},
    ]
    return source.choice(leaves)


def make_object(source: random.Random, depth: int) -> Figures:
    names = source.sample(NAMES, 2 + source.randrange(3))
    properties = {name: make_schema(source, depth - 1) for name in names}
    required = names[: 1 + source.randrange(len(names))]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = [make_object(random.Random(seed), 3) for seed in range(NUM_SCHEMAS)]


async def ask(client: AsyncOpenAI, model: str, schema: Figures, seed: int) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe a thing as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
        temperature=1,
        seed=seed,
        max_tokens=MOST_TOKENS,
    )
    choice = answer.choices[0]
    if choice.finish_reason != "stop":
        return str(choice.finish_reason)
    try:
        jsonschema.validate(json.loads(choice.message.content or ""), schema)
    except (ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


async def count_answers(url: str, model: str, number: int) -> Figures:
    gate = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=5) as client:

        async def run(seed: int) -> str:
            async with gate:
                return await ask(client, model, SCHEMAS[seed % NUM_SCHEMAS], seed)

        return {"answers": dict(Counter(await asyncio.gather(*map(run, range(number)))))}


async def measure_refusals(url: str, model: str) -> Figures:
    """Return how long slow schemas take until they are refused, in seconds, on a server that does nothing else."""
    times = []
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600) as client:
        await ask(client, model, SCHEMAS[0], 0)  # the first schema of a process loads the compiler
        for _ in range(TIMES):
            begun = time.perf_counter()
            try:
                await ask(client, model, HOSTILE, 0)
            except BadRequestError:
                times.append(time.perf_counter() - begun)
    return {"median s": round(median(times), 2), "most s": round(max(times), 2), "count": len(times)}


def run_suite(folder: Path) -> Figures:
    """Return how the tokens of each instance of the suite fare under the grammar of its schema.

    A schema with a keyword that is not implemented is refused, which is no error; an invalid instance that its grammar
    accepts is one. A valid instance may be rejected: a grammar fixes the order of properties, for example.
    """
    text, counts, wrong = ModelTokenizer(folder), Counter[str](), list[str]()
    for name, case in read_cases():
        try:
            compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(case["schema"])))
        except InvalidRequest:
            counts["schemas refused"] += 1
            continue
        counts["schemas compiled"] += 1
        for test in case["tests"]:
            is_accepted = follows(text, compiled, test["data"])
            counts[f"{'valid' if test['valid'] else 'invalid'} and {'accepted' if is_accepted else 'rejected'}"] += 1
            if is_accepted and not test["valid"]:
                wrong.append(f"{name}: {case['description']}: {test['description']}")
    return {**counts, "wrongly accepted": wrong}


def follows(text: ModelTokenizer, compiled: Any, instance: Any) -> bool:
    matcher = compiled.start()
    try:
        matcher.advance(text.encode(json.dumps(instance, ensure_ascii=False), special=False))
        mask = matcher.find_mask(text.stop_ids, may_end=True)
    except BackendFailed:
        return False
    return any(mask[token // 8] >> token % 8 & 1 for token in text.stop_ids)


def read_cases() -> Iterator[tuple[str, Figures]]:
    with tempfile.TemporaryDirectory() as place:
        archive = download(f"jsonschema=={metadata.version('jsonschema')}", Path(place), is_source=True)
        with tarfile.open(archive) as sources:
            for member in sources:
                inner = member.name.partition("/")[2]
                if inner.startswith(DRAFT) and inner.endswith(".json") and "/" not in inner.removeprefix(DRAFT):
                    content = sources.extractfile(member)
                    assert content is not None
                    for case in json.load(content):
                        yield Path(inner).name, case


def run_part(name: str, model: Path, share: float) -> Figures:
    if name == "suite":
        return run_suite(model)
    options, number = SERVED.get(name, ((), 0))
    with serving(str(model), *PLAIN, *options) as (url, served):
        work = count_answers(url, served, round(number * share)) if number else measure_refusals(url, served)
        return asyncio.run(work)


def main(args: Sequence[str] | None = None) -> None:
    """Run the parts that the report lacks."""
    names = ("suite", "slow schemas", *SERVED)
    parser = make_parser(__doc__, takes_model=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the answers")
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="the parts to run")
    given = parser.parse_args(args)
    report, model = read_report(given.out), given.model or find_model()
    for name in given.only:
        if name not in report:
            run = describe_run(["benchmarks.schemas", "--only", f"'{name}'"], ["llguidance", "jsonschema"])
            report[name] = {"run": run, **run_part(name, model, given.share)}
            write_report(given.out, report)
            print(name, {key: value for key, value in report[name].items() if key != "run"}, flush=True)


if __name__ == "__main__":
    main()
