"""Measures how many small faults in core and what left it the tests catch: plants one at a time, and runs tests.

    python -m tests.support.mutants --number 200 --seed 1 --out build/mutants.json

Mutants are drawn by the seed from all places of core but its kits, of the cluster and of the APIs, where a comparison,
a condition, a number, a sum, a statement or a return value can be another (the operators of mutmut, without those for
texts, which tests rightly do not compare). Types, texts of the log and what only a programmer's error reaches are no
places. All are planted in one copy of the tree, beside what they replace, each with a switch. The tests of `make test`
run there once, so that the switches note which get there. Then a process that has collected them forks for each mutant,
and runs those of its own module, short ones of its package, and short ones of others, those that start servers last,
until one fails that passes without the mutant. A place that runs as its module is imported has no switch: its mutant is
planted in another copy, and the tests that name the module run there, then those of contracts, and short ones.

A survivor that a reader has found to behave as the original is listed in mutant_equivalents.json, and counts apart.
After `--minutes`, or where it was interrupted, a run ends, and the same command goes on from there; `--again` tries
those that survived once more, with all tests of their modules, as they are by then in the copies.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import sys
import time
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from tests.support.mutant_places import Place, has_switch, list_places, plant, put_switches
from tests.support.mutant_tests import (
    UNTIL,
    Chooser,
    copy_tree,
    follow,
    is_late,
    note_found,
    read_found,
    record,
    run_tests,
)

ROOT = Path(__file__).parents[2]
EQUIVALENTS = Path(__file__).with_name("mutant_equivalents.json")
FOUND = "found.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, plant, count, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    parser.add_argument("--folder", type=Path, help="where the copies of the tree are, build/mutants/SEED-NUMBER")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutants.json")
    parser.add_argument("--minutes", type=float, help="begin nothing more after so many")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="for tests of the package, and for others",
    )
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    options = parser.parse_args(arguments)
    if options.minutes is not None:
        os.environ[UNTIL] = str(time.time() + 60 * options.minutes)
    folder: Path = (options.folder or ROOT / f"build/mutants/{options.seed}-{options.number}").absolute()
    chosen = random.Random(options.seed).sample(list_places(copy_tree(ROOT, folder / "tree")), options.number)
    if not judge(folder, chosen, options):
        sys.exit(f"{len(read_found(folder / FOUND))} of {len(chosen)} are judged; the same command goes on")
    caught, equivalents = read_found(folder / FOUND), read_equivalents()
    mutants = [_describe(folder / "tree", place, caught[place.name], equivalents) for place in chosen]
    facts = describe_run(["tests.support.mutants", "--number", str(options.number), "--seed", str(options.seed)])
    num_caught, num_equivalent = (sum(bool(each[name]) for each in mutants) for name in ("caught_by", "equivalent"))
    write_report(options.out, {"caught": num_caught, "equivalent": num_equivalent, "mutants": mutants, **facts})
    print(f"{num_caught} of {len(mutants) - num_equivalent} are caught, and {num_equivalent} are equivalent")


def judge(folder: Path, chosen: Sequence[Place], options: argparse.Namespace) -> bool:
    """Find the tests that catch the mutants of places; return whether there was time for all."""
    tree, switched, notes, found = (folder / name for name in ("tree", "switched", "notes", FOUND))
    if not switched.exists():
        put_switches(copy_tree(ROOT, switched), chosen)
    if not record(switched, notes, options.workers):
        return False
    caught = read_found(found)
    rest = [place for place in chosen if place.name not in caught or (options.again and not caught[place.name])]
    chooser = Chooser(switched, notes, options.seconds, takes_files=options.again)
    plan = {place.name: chooser.choose(place.file, place.name) for place in rest if has_switch(switched, place)}
    follow(switched, plan, found, options.workers)
    for place in rest:
        if place.name not in plan and not is_late():
            note_found(found, place.name, try_imported(tree, place, chooser.list_importing(place.file)))
    return not is_late() or len(read_found(found)) == len(chosen)


def read_equivalents() -> set[tuple[str, str, str]]:
    """Return the mutants that behave as the original: their files, and the node before and after."""
    listed = json.loads(EQUIVALENTS.read_text(encoding="utf-8"))
    return {(each["file"], each["before"], each["after"]) for each in listed}


def try_imported(folder: Path, place: Place, tests: Sequence[str]) -> str:
    """Plant a fault for a while, and return a test that fails then alone; empty: none does."""
    target, left = folder / place.file, list[str]()
    source = target.read_text()
    plain = ast.unparse(ast.parse(source))  # some tests say how the text of a module reads
    planted = ast.unparse(ast.fix_missing_locations(plant(source, place.index)[0]))
    try:
        while True:
            target.write_text(planted)
            failed = run_tests(folder, tests, left)
            target.write_text(plain)
            if not failed or not run_tests(folder, [failed]):
                return failed
            left.append(failed)
    finally:
        target.write_text(source)


def _describe(folder: Path, place: Place, by: str, equivalents: Container[tuple[str, str, str]]) -> dict[str, Any]:
    _, before, after = plant((folder / place.file).read_text(), place.index)
    shown = [ast.unparse(node).partition("\n")[0][:100] for node in (before, after)]
    line, equivalent = int(getattr(before, "lineno", 0)), not by and (place.file, *shown) in equivalents
    found = {"caught_by": by, "equivalent": equivalent}
    return {"file": place.file, "line": line, "before": shown[0], "after": shown[1], **found}


if __name__ == "__main__":
    main()
