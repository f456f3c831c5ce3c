"""Measures how many small faults in core and what left it the tests catch: plants one at a time, and runs tests.

    python -m tests.support.mutants --number 200 --seed 1 --out build/mutants.json

Mutants are drawn by the seed from all places of core but its kits, of the cluster and of the APIs, where a comparison,
a condition, a number, a sum, a statement or a return value can be another (the operators of mutmut, without those for
texts, which tests rightly do not compare). All are planted in one copy of the tree, beside what they
replace, each with a switch. Its tests, but those that need a server of their own, run once, so that the switches note
which tests get there. Then a process that has collected all tests forks for each mutant, and runs those of its own
module, then the others, until one fails that passes without the mutant. A place that runs as its module is imported
has no switch: its mutant is planted in another copy, and the tests that name the module run there. A run that was
interrupted goes on where it was; `--again` tries those that survived once more, with all tests of their modules, as
they are by then in the copies.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from tests.support.mutant_places import Place, has_switch, list_places, plant, put_switches
from tests.support.mutant_tests import Chooser, copy_tree, follow, note_found, read_found, record, run_tests

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, plant, count, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3, help="processes that record which tests run a place")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants", help="where the copies of the tree are")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutants.json")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.absolute()
    tree, switched, notes, found = (folder / name for name in ("tree", "switched", "notes", "found.jsonl"))
    chosen = random.Random(options.seed).sample(list_places(copy_tree(ROOT, tree)), options.number)
    if not switched.exists():
        put_switches(copy_tree(ROOT, switched), chosen)
    if not notes.exists():
        record(switched, notes, options.workers)
    caught = read_found(found)
    rest = [place for place in chosen if place.name not in caught or (options.again and not caught[place.name])]
    chooser = Chooser(switched, notes, takes_files=options.again)
    plan = {place.name: chooser.choose(place.file, place.name) for place in rest if has_switch(switched, place)}
    follow(switched, folder / "plan.json", plan, found)
    for place in rest:
        if place.name not in plan:
            note_found(found, place.name, try_imported(tree, place, chooser.list_naming(place.file)))
    mutants = [_describe(tree, place, caught) for caught in [read_found(found)] for place in chosen]
    facts = describe_run(["tests.support.mutants", "--number", str(options.number), "--seed", str(options.seed)])
    num_caught = sum(bool(each["caught_by"]) for each in mutants)
    write_report(options.out, {"caught": num_caught, "mutants": mutants, **facts})
    print(f"{num_caught} of {len(mutants)} are caught")


def try_imported(folder: Path, place: Place, tests: Sequence[str]) -> str:
    """Plant a fault for a while, and return a test that fails then alone; empty: none does."""
    target = folder / place.file
    source = target.read_text()
    target.write_text(ast.unparse(ast.fix_missing_locations(plant(source, place.index)[0])))
    try:
        failed = run_tests(folder, tests)
    finally:
        target.write_text(source)
    return failed if failed and not run_tests(folder, [failed]) else ""


def _describe(folder: Path, place: Place, caught: Mapping[str, str]) -> dict[str, Any]:
    _, before, after = plant((folder / place.file).read_text(), place.index)
    shown = [ast.unparse(node).partition("\n")[0][:100] for node in (before, after)]
    line, by = int(getattr(before, "lineno", 0)), caught.get(place.name, "")
    return {"file": place.file, "line": line, "before": shown[0], "after": shown[1], "caught_by": by}


if __name__ == "__main__":
    main()
