"""Compares the kernels of the torch backend for ARM, under emulation, with the plain ones and with those for x86.

    python -m plugins.backend_torch.tests.arm_kernels --out benchmarks/results/arm-kernels.json

The kernels and the program ``driver.cpp`` of their tests, which runs all of them on the same inputs on every machine,
are compiled for aarch64 and for this machine. The first runs under ``qemu-aarch64`` as three processors: one with NEON
alone, one with the dot product, and one with everything. Each result of each instruction set is compared with that of
``plain`` for aarch64 and, on x86, with those of AVX2; BFMMLA's also with those of AVX-512's BF16.

Emulation says nothing of speed. In its place the instructions of the inner loop with the most products are counted in
the compiled code: how many multiply, how many products one instruction of the loop makes on average, and how many
access the stack, which sums that do not fit the registers would.

A run fails if a result that has to have the same bits has others, or another is farther from the plain one than its
limit, or a processor gets other kernels than those it can run. Needed are a cross compiler and an emulator.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import describe_run, write_report
from tests.support.hatch import load_build

DRIVER = Path(__file__).with_name("driver.cpp")
COMPILER, EMULATOR, OBJDUMP = "aarch64-linux-gnu-g++", "qemu-aarch64", "aarch64-linux-gnu-objdump"
PACKAGES = "g++-aarch64-linux-gnu qemu-user"
LIBRARIES = "/usr/aarch64-linux-gnu"
PROCESSORS = {
    "cortex-a72": ["plain", "neon"],
    "neoverse-n1": ["plain", "neon", "neon_dotprod"],
    "max": ["plain", "neon", "neon_dotprod", "neon_i8mm", "neon_bf16"],
}
"""The kernels each emulated processor has to be able to run."""

SAME = re.compile(r"(gated )?product (float32|bfloat16|int8|int8_low|int4)|gather|normalisation|draws")
SAME_IN_ARM = re.compile(SAME.pattern + r"|rotation|gate ")
LIMITS = {"attention narrow": 2.0**-8, "attention int8": 2.0**-12, "layers int": 2.0**-12}
"""What has to have the same bits on every machine; what also among the kernels for ARM, compiled by one compiler; and
how far the rest may be, of the largest number of a result: attention in bfloat16 by the rounding of its queries and
weights, and attention to int8 and coded layers because a last bit may round a number to another integer."""
LIMIT = 2.0**-16

Values = NDArray[np.float32]
Results = dict[str, dict[str, Values]]
"""For each instruction set, the numbers of each result."""

PRODUCTS = {"fmla": 4, "smlal": 4, "smlal2": 4, "sdot": 16, "smmla": 32, "bfdot": 8, "bfmmla": 16}
"""The products an instruction makes; SMLAL twice as many if its operands are bytes."""
KINDS = {
    "Float32Weights": "float32",
    "Bfloat16Weights": "bfloat16",
    "multiply_couples": "narrow bfloat16",
    "Int8Weights": "int8",
    "Int4Weights": "int4",
}
BRANCH = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)\s.*?\b([0-9a-f]+) <")


def check_tools() -> None:
    """End with an error if a tool is missing."""
    if missing := [tool for tool in (COMPILER, EMULATOR, OBJDUMP) if not shutil.which(tool)]:
        raise SystemExit(f"error: {', '.join(missing)} not found\nhint: apt-get install {PACKAGES}")


def build_driver(compiler: list[str], folder: Path) -> Path:
    """Compile the kernels and their driver, one object file for each unit; return the program."""
    build = load_build()
    folder.mkdir()
    units = [*build.list_units(build.find_machine(compiler)), (DRIVER, [])]
    objects, said = build.compile_units(compiler, units, folder, [])
    if said := said or build.run_command([*compiler, "-pthread", *objects, "-o", str(folder / "driver")]):
        raise SystemExit(f"error: the kernels do not compile\n{said}")
    return folder / "driver"


def run_driver(command: list[str], program: Path) -> Results:
    """Run the driver; return its results."""
    record = program.with_name("results")
    subprocess.run([*command, program, record], check=True)
    return dict(read_results(record.read_bytes()))


def read_results(record: bytes) -> Results:
    """Return the results of a run: a line (instruction set, what, count) before the numbers of each."""
    found: Results = {}
    at = 0
    while at < len(record):
        end = record.index(b"\n", at)
        isa, what, count = record[at:end].decode().split(",")
        found.setdefault(isa, {})[what] = np.frombuffer(record, "<f4", int(count), end + 1)
        at = end + 1 + 4 * int(count)
    return found


def compare(found: Mapping[str, Values], expected: Mapping[str, Values]) -> dict[str, dict[str, float]]:
    """Return for each kind of result how many numbers differ, and by how much of the largest number of their result."""
    kinds: dict[str, dict[str, float]] = {}
    assert found.keys() == expected.keys()
    for what, mine in found.items():
        theirs = expected[what]
        kind = kinds.setdefault(
            re.sub(r"( \d[\dx]*)?( rows| window)?( \d+)?$", "", what), {"values": 0, "differ": 0, "most": 0.0}
        )
        kind["values"] += mine.size
        kind["differ"] += int(np.count_nonzero(mine.view(np.int32) != theirs.view(np.int32)))
        largest = max(float(np.abs(theirs).max()), float(np.finfo(np.float32).tiny))
        kind["most"] = max(kind["most"], float(np.abs(mine.astype(float) - theirs).max()) / largest)
    return {kind: {**each, "most": float(f"{each['most']:.2g}")} for kind, each in kinds.items()}


def find_faults(pair: str, compared: Mapping[str, Mapping[str, float]], same: re.Pattern[str]) -> Iterator[str]:
    """Yield what differs that must not, or by too much."""
    for kind, each in compared.items():
        limit = next((limit for start, limit in LIMITS.items() if kind.startswith(start)), LIMIT)
        if (same.match(f"{kind} ") and each["differ"]) or not each["most"] <= limit:  # NaN too
            yield f"{pair}: {kind}: {each['differ']} of {each['values']} differ, by up to {each['most']}"


def count_instructions(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each instruction set and kind of weight what the inner loop with the most products consists of."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for unit in folder.glob("*.o"):
        listed = subprocess.run(
            [OBJDUMP, "-d", "-C", "--no-show-raw-insn", unit], capture_output=True, text=True, check=True
        )
        for symbol, body in re.findall(r"^[0-9a-f]+ <(.*multiply_.*)>:\n((?:.+\n)+)", listed.stdout, re.MULTILINE):
            names = re.search(rf"plx::(\w+)::.*?({'|'.join(KINDS)})", symbol)
            if names is None:
                continue
            best = max(
                (count_loop(loop, names[2]) for loop in find_loops(body)),
                key=lambda each: each["products"],
                default=None,
            )
            kinds = found.setdefault(names[1], {})
            if best and best["products"] > kinds.get(KINDS[names[2]], {"products": 0})["products"]:
                kinds[KINDS[names[2]]] = best
    return found


def find_loops(body: str) -> Iterator[list[str]]:
    """Yield the instructions of each loop that has no other loop in it."""
    lines = [(int(at, 16), text) for at, text in re.findall(r"^\s*([0-9a-f]+):\s+(.*)$", body, re.MULTILINE)]
    back = [
        (int(branch[1], 16), at) for at, text in lines if (branch := BRANCH.match(text)) and int(branch[1], 16) <= at
    ]
    for start, end in back:
        if not any(start <= first and last < end for first, last in back):
            yield [text for at, text in lines if start <= at <= end]


def count_loop(loop: list[str], weights: str) -> dict[str, Any]:
    """Return the numbers of a loop's instructions, those that multiply by name."""
    coded = weights.startswith("Int")
    names = [text.split()[0] for text in loop]
    fused = {name: names.count(name) for name in PRODUCTS if name in names and not (coded and name == "fmla")}
    products = sum(PRODUCTS[name] * count for name, count in fused.items())
    if any(re.match(r"smlal2?\s+v\d+\.8h", text) for text in loop):
        products *= 2
    if weights == "Int8Weights" and fused.keys() & {"sdot", "smmla"}:
        products //= 2  # activations are two bytes
    return {
        "multiply": fused,
        "instructions": len(loop),
        "stack": sum("[sp" in text for text in loop),
        "products": products,
        "products_per_instruction": round(products / len(loop), 2),
    }


def measure(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the report, and what is wrong."""
    arm, here = build_driver([COMPILER], folder / "arm"), build_driver(load_build().find_compiler(), folder / "here")
    faults: list[str] = []
    for processor, wanted in PROCESSORS.items():
        found = run_driver([EMULATOR, "-cpu", processor, "-L", LIBRARIES], arm)
        if list(found) != wanted:
            faults.append(f"{processor} has kernels for {', '.join(found)} instead of {', '.join(wanted)}")
    native = run_driver([], here)
    compared: dict[str, dict[str, dict[str, float]]] = {}
    for isa in list(found)[1:]:
        compared[f"{isa}, plain"] = compare(found[isa], found["plain"])
        faults.extend(find_faults(f"{isa}, plain", compared[f"{isa}, plain"], SAME_IN_ARM))
    for isa, theirs in [*((isa, "avx2") for isa in found), ("neon_bf16", "avx512_bf16")]:
        if theirs in native:
            compared[f"{isa}, {theirs}"] = compare(found[isa], native[theirs])
            faults.extend(find_faults(f"{isa}, {theirs}", compared[f"{isa}, {theirs}"], SAME))
    return {"processors": PROCESSORS, "compared": compared, "inner_loops": count_instructions(arm.parent)}, faults


def read_version(tool: str) -> str:
    """Return the first line that a tool says of its version."""
    return subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout.partition("\n")[0]


def main() -> None:
    """Print the report and write it where ``--out`` says; fail if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the report as JSON")
    given = parser.parse_args()
    check_tools()
    with tempfile.TemporaryDirectory() as folder:
        report, faults = measure(Path(folder))
    tools = {tool: read_version(tool) for tool in (EMULATOR, COMPILER)}
    report = {**report, "tools": tools, **describe_run(["plugins.backend_torch.tests.arm_kernels"])}
    print(json.dumps(report, indent=2))
    if faults:
        raise SystemExit("\n".join(["error: kernels differ", *faults]))
    write_report(given.out, report)


if __name__ == "__main__":
    main()
