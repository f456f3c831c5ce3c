"""Do answers under JSON schemas finish, are they valid, and what do they cost?

    python -m benchmarks.schemas MODEL_FOLDER --out benchmarks/results/schemas.json

Answers at temperature 1 over 100 schemas made from seeds: nested objects, arrays, bounded strings, enumerations, ranges
and unions. Half of them are drawn by a toy model, in one stage and in three, the others by the real model behind
`parallax serve`, on each backend in one stage and in three. `jsonschema`, which shares no code with the library that
makes the masks, checks every answer that finishes; answers that end by their length are counted as ``length``.

The rates of tokens with and without a schema, for 8 and 32 requests at a time, in turns, and with schemas while schemas
of 2 MB that take too long are sent; the times to refuse such a schema; the times of single masks; and the
JSON-Schema-Test-Suite. Each part is written when it is done and skipped by the next run, and answers go on where they
were; ``--only`` chooses parts, such as those that need a quiet machine: ``masks``, ``slow schemas``, ``rates of mlx``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import numpy as np
from openai import AsyncOpenAI, BadRequestError

from benchmarks.clients import serve
from benchmarks.random_schemas import NUM_SCHEMAS, SCHEMAS
from benchmarks.record import describe_run, read_report, write_report
from benchmarks.schema_suite import run_suite
from parallax_core.api import Grammar, LayerRange, Request, RequestId, Sampling
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.testing.toy import Toy
from tests.unit.tinymodel import write_model

Report = dict[str, Any]
Judge = Callable[[int], Awaitable[str]]
"""Asks for the answer of a number, and returns ``valid``, ``invalid`` or ``length``."""

PLAIN = ("--set", "generation_config=off")
"""Options for draws at temperature 1 from all tokens: the model's own defaults keep the most probable ones only."""
SERVED = {
    "torch": (*PLAIN, "--backend", "torch", "--dtype", "bfloat16"),
    "torch in 3 stages": (*PLAIN, "--backend", "torch", "--dtype", "bfloat16", "--stages", "3"),
    "mlx": (*PLAIN, "--backend", "mlx"),
    "mlx in 3 stages": (*PLAIN, "--backend", "mlx", "--stages", "3"),
}
"""The options of the server of each formation of the real model."""
TOYS = {"toy": 1, "toy in 3 stages": 3}
"""The stages of each formation of the toy model."""
ANSWERS = {
    "torch": 2000,
    "torch in 3 stages": 2500,
    "mlx": 250,
    "mlx in 3 stages": 250,
    "toy": 2500,
    "toy in 3 stages": 2500,
}
"""The answers of each formation; fewer on MLX, which is several times slower on a CPU than PyTorch."""
RATES = {f"rates of {name}": options for name, options in SERVED.items()}
"""The parts that measure rates, with the options of their servers."""
SLOW = "slow schemas"
"""The part that measures how long the refusal of a schema takes that is too slow."""
SINGLE = ("masks", "suite")
"""The parts without a server."""
TIMES = 10
"""Slow schemas that are sent one after another."""
PART = 50
"""Answers after which the counts are written."""
MOST_TOKENS = 300
AT_ONCE = 32
THING = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 30},
        "size": {"type": "integer", "minimum": 1, "maximum": 500},
        "kind": {"enum": ["animal", "plant", "stone", "tool"]},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": THING, "minItems": 50}
"""The schema whose rate is measured: an answer takes as many tokens as it may."""
HOSTILE = {
    "type": "object",
    "properties": {f"field{number:06}": {"type": "integer", "multipleOf": 999_983} for number in range(36_000)},
}
"""Compiling a single one of its fields takes half a minute; 2 MB as JSON."""


def judge_text(number: int, text: str) -> str:
    """Return whether the text of a finished answer is valid under the schema of its number."""
    try:
        jsonschema.validate(json.loads(text), SCHEMAS[number % NUM_SCHEMAS])
    except (ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


class Asker:
    """Asks a server for answers."""

    def __init__(self, url: str, model: str, most: int = MOST_TOKENS) -> None:
        self._model, self._most = model, most
        self._client = AsyncOpenAI(base_url=url, api_key="none", timeout=600, max_retries=5)

    async def ask(self, schema: Report | None, number: int, most: int = MOST_TOKENS) -> tuple[str, str, int]:
        """Return the text of an answer, why it ended, and its number of tokens."""
        wanted: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        answer = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": "Describe a thing as JSON."}],
            response_format={"type": "text"} if schema is None else wanted,
            temperature=1,
            seed=number,
            max_tokens=most,
            extra_body={"ignore_eos": schema is None},
        )
        assert answer.usage is not None
        return answer.choices[0].message.content or "", answer.choices[0].finish_reason, answer.usage.completion_tokens

    async def judge(self, number: int) -> str:
        """See `Judge`."""
        text, reason, _ = await self.ask(SCHEMAS[number % NUM_SCHEMAS], number)
        return judge_text(number, text) if reason == "stop" else reason

    async def rate(self, at_once: int, *, has_schema: bool, rounds: int = 1) -> float:
        """Return the tokens per second of requests at a time, all of which take as long as they may."""
        schema = LONG if has_schema else None
        begun, num_tokens = time.perf_counter(), 0
        for round_number in range(rounds):
            asked = (self.ask(schema, 1000 * round_number + number, self._most) for number in range(at_once))
            num_tokens += sum([count for _, _, count in await asyncio.gather(*asked)])
        return num_tokens / (time.perf_counter() - begun)

    async def attack(self) -> float:
        """Send a schema that takes too long, and return the seconds to its refusal."""
        begun = time.perf_counter()
        with contextlib.suppress(BadRequestError):
            await self.ask(HOSTILE, 0)
            raise SystemExit("a grammar that takes half a minute to compile was not refused")
        return time.perf_counter() - begun

    async def attack_for_ever(self) -> None:
        """Send such schemas one after another."""
        while True:
            await self.attack()


class ToyAsker:
    """Asks a pipeline of the toy model, which draws nearly at random, for answers."""

    def __init__(self, engine: PipelineEngine, text: ModelTokenizer) -> None:
        self._engine = engine
        self._text = text

    async def judge(self, number: int) -> str:
        """See `Judge`."""
        grammar = Grammar(kind="json_schema", source=json.dumps(SCHEMAS[number % NUM_SCHEMAS]))
        request = Request(
            id=RequestId(str(number)),
            prompt=self._text.encode(f"{number}"),
            max_tokens=4 * MOST_TOKENS,
            sampling=Sampling(seed=number),
            stop_ids=self._text.stop_ids,
            grammar=grammar,
        )
        deltas = [delta async for delta in self._engine.submit(request)]
        assert deltas[-1].finish is not None, "a stream has an end"
        reason = deltas[-1].finish.reason
        return judge_text(number, "".join(delta.text for delta in deltas)) if reason == "stop" else reason


async def count_answers(judge: Judge, found: Report, wanted: int, save: Callable[[], None]) -> None:
    """Count how answers fare, up to ``wanted`` of them, from those on that ``found`` has counted already."""
    counts, gate = Counter[str](found.get("answers", {})), asyncio.Semaphore(AT_ONCE)

    async def run(number: int) -> str:
        async with gate:
            return await judge(number)

    tasks = [asyncio.create_task(run(number)) for number in range(counts.total(), wanted)]
    for task in tasks:  # in order, so that the next run knows which answers are counted
        counts[await task] += 1
        if counts.total() % PART == 0 or counts.total() == wanted:
            found["answers"] = dict(counts)
            save()


async def count_toy(num_stages: int, found: Report, wanted: int, save: Callable[[], None]) -> None:
    """Count the answers of the toy, in which each byte is a token."""
    with tempfile.TemporaryDirectory() as folder:
        text = ModelTokenizer(write_model(Path(folder)))
        toy = Toy(("full", "window", "full"), vocab=text.vocab_size)
        cuts = [3 * index // num_stages for index in range(num_stages + 1)]
        sizes: Any = {"num_pages": 8000, "page_size": 16, "context": 2000, "max_batch_tokens": 256}
        openers = [partial(toy.open, LayerRange(*each), **sizes) for each in pairwise(cuts)]
        options = PipelineOptions(grammars=text.grammars)
        engine = PipelineEngine(LocalExecutor(openers, options), text.decode, options)
        await engine.start()
        try:
            await count_answers(ToyAsker(engine, text).judge, found, wanted, save)
        finally:
            await engine.stop()


async def measure_rates(asker: Asker, turns: int) -> Report:
    """Return the rates with schemas as shares of those without, and while slow schemas are sent of those without."""
    found: Report = {}
    for at_once in (8, 32):
        ratios = []
        for _ in range(turns):
            plain = await asker.rate(at_once, has_schema=False)
            ratios.append(await asker.rate(at_once, has_schema=True) / plain)
        found[f"rate with schemas, {at_once} at once"] = round(median(ratios), 3)
    alone = await asker.rate(8, has_schema=True, rounds=turns)
    attacking = asyncio.create_task(asker.attack_for_ever())
    attacked = await asker.rate(8, has_schema=True, rounds=turns)
    attacking.cancel()
    found["rate while others send slow grammars"] = round(attacked / alone, 3)
    return found


async def measure_refusals(asker: Asker) -> Report:
    """Return how long slow schemas take until they are refused, in seconds, on a server that does nothing else."""
    await asker.judge(0)  # the first schema of a process loads the compiler
    times = sorted([await asker.attack() for _ in range(TIMES)])
    return {"median s": round(median(times), 2), "most s": round(times[-1], 2), "count": len(times)}


def time_masks(folder: Path) -> dict[str, float]:
    """Return the times of masks, in milliseconds of the processor, along random answers to all schemas."""
    text, source, times = ModelTokenizer(folder), random.Random(0), []
    for schema in SCHEMAS:
        compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
        matcher = compiled.start()
        for _ in range(60):
            begun = time.thread_time()
            mask = matcher.find_mask(text.stop_ids, may_end=True)
            times.append(1000 * (time.thread_time() - begun))
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            token = source.choice(np.flatnonzero(bits).tolist())
            if token in text.stop_ids:
                break
            matcher.advance([token])
    times.sort()
    return {"count": len(times), "p50 ms": median(times), "p99 ms": times[99 * len(times) // 100], "most ms": times[-1]}


def run_part(name: str, given: argparse.Namespace, found: Report, save: Callable[[], None]) -> None:
    """Run one part, and add what it finds to ``found``."""
    if name == "masks":
        found |= time_masks(given.model)
    elif name == "suite":
        found |= run_suite(given.model)
    elif name in TOYS:
        asyncio.run(count_toy(TOYS[name], found, round(ANSWERS[name] * given.share), save))
    elif name == SLOW:
        with serve(given.model) as url:
            found |= asyncio.run(measure_refusals(Asker(url, given.model.name)))
    elif name in RATES:
        with serve(given.model, *RATES[name]) as url:
            found |= asyncio.run(measure_rates(Asker(url, given.model.name, given.tokens), given.turns))
    else:
        with serve(given.model, *SERVED[name]) as url:
            judge = Asker(url, given.model.name).judge
            asyncio.run(count_answers(judge, found, round(ANSWERS[name] * given.share), save))
    found["is whole"] = True
    save()


def main(args: Sequence[str] | None = None) -> None:
    """Run the parts that the report lacks."""
    names = [*SINGLE, SLOW, *TOYS, *SERVED, *RATES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the answers of each formation; 1: 10,000 in all")
    parser.add_argument("--turns", type=int, default=5, help="turns of each measurement of a rate")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer whose rate is measured")
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="the parts to run")
    given = parser.parse_args(args)
    report = read_report(given.out)
    command = ["benchmarks.schemas", "MODEL", "--share", str(given.share), "--turns", str(given.turns)]
    for name in given.only:
        found = report.setdefault(name, {})
        if not found.get("is whole"):
            found["run"] = describe_run([*command, "--only", f"'{name}'"], ["llguidance", "jsonschema"])
            run_part(name, given, found, partial(write_report, given.out, report))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
