"""LoRA adapters of experts, as PEFT writes them.

An expert is a module of its own, or all lie in the stacks that transformers has of them.
PEFT's ``target_parameters`` name stacks, such as ``mlp.experts.gate_up_proj``. It wraps the module of a stack, and that
wrapper for the next stack; so its files name the wrappers, and not the stacks: ``mlp.experts.lora_A.weight`` and
``mlp.experts.base_layer.lora_A.weight``. In both matrices lie those of all experts: ``A`` is [experts * rank, in], and
``B`` [out, rank * experts].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import numpy as np

from parallax_core.api import Tensor, Unsupported

EXPERTS = ".experts."
"""In the names of matrices of experts, which work on other rows than those of a step."""
INNER = ".base_layer"
"""What PEFT adds to the name of a module that it has wrapped twice."""
GATE_UP, DOWN = "gate_up_proj", "down_proj"
STACKS = (GATE_UP, DOWN)
"""The parameters that may be named: the stacks of transformers, whose experts are [out, in]."""
STACK = re.compile(r"(?P<layer>layers\.\d+)\.(?:\w+\.)*experts\.(?P<stack>gate_up_proj|down_proj)")
"""Matches the name of a stack from its layer on."""
EXPERT = re.compile(r"(?P<layer>layers\.\d+)\.(?:\w+\.)*?experts\.(?P<number>\d+)\.(?P<matrix>\w+)")
"""Matches the name of a matrix of an expert from its layer on."""
SPELLINGS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Other names of matrices of experts."""
PLAIN = "weight"
"""The parameter of a plain module, such as a router's: an adapter of it is like that of a linear layer."""
HINT = "train an adapter of the stacks gate_up_proj and down_proj, or merge it into its base model"
MOST_NAME = 300
"""The most letters of the name of a module."""
Sides = tuple[int, int]
"""Inputs and outputs."""


def spell_module(name: str) -> str:
    """Return the one name of a matrix, however files spell it.

    That of an expert is ``layers.3.experts.5.up_proj``; a file may have ``layers.3.block_sparse_moe.experts.5.w3``.
    """
    if (found := EXPERT.fullmatch(name)) is None:
        return name.replace(".block_sparse_moe.", ".mlp.")  # as transformers calls it now
    return f"{found['layer']}{EXPERTS}{found['number']}.{SPELLINGS.get(found['matrix'], found['matrix'])}"


def find_stack(name: str) -> tuple[str, str] | None:
    """Return the layer and the stack that a module of an adapter is; None for another module."""
    found = STACK.fullmatch(name)
    return None if found is None else (found["layer"], found["stack"])


def check_parameters(names: Iterable[str]) -> None:
    """Refuse ``target_parameters`` that are neither stacks of experts nor plain matrices.

    Raises:
        Unsupported: naming the parameter.
    """
    for name in names:
        words = name.split(".")
        if words[-1] != PLAIN and not (words[-1] in STACKS and words[-2:-1] in ([], ["experts"])):
            raise Unsupported(f"target_parameters has {name[:80]!r}, which is no stack of experts", HINT)


def name_stacks(sides: Mapping[str, Sides], parameters: AbstractSet[str]) -> dict[str, str]:
    """Return the names of stacks, such as ``layers.3.mlp.experts.down_proj``, by the modules in a file.

    Args:
        sides: of the modules in the file.
        parameters: ``target_parameters``: whole names, or their ends.

    Raises:
        Unsupported: if it cannot be told which stack a module is.
    """
    found: dict[str, str] = {}
    for module in sides if parameters else ():
        if not module.endswith("experts") or len(module) > MOST_NAME:
            continue
        named = [stack for stack in STACKS if not parameters.isdisjoint(list_ends(f"{module}.{stack}"))]
        wrappers = [module + INNER * depth for depth in range(len(named))]
        if not named or module + INNER * len(named) in sides or not all(each in sides for each in wrappers):
            raise Unsupported(f"{module} has other matrices than those of target_parameters", HINT)
        if len(named) > 1:
            named = _order(module, *(sides[each] for each in wrappers))
        found |= {wrapper: f"{module}.{stack}" for wrapper, stack in zip(wrappers, named, strict=True)}
    return found


def list_ends(name: str) -> list[str]:
    """Return a name and its ends: all words, all but the first, and so on."""
    words = name.split(".")
    return [".".join(words[start:]) for start in range(len(words))]


def split_stack(a: Tensor, b: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the matrices of each expert, [rank, in] and [out, rank], given those of all; see the top of the module."""
    kind = np.dtype(f"u{memoryview(a.data).nbytes // (a.shape[0] * a.shape[1])}")
    down = np.frombuffer(a.data, kind).reshape(count, -1, a.shape[1])
    up = np.frombuffer(b.data, kind).reshape(b.shape[0], -1, count).transpose(2, 0, 1)
    for one, other in zip(down, np.ascontiguousarray(up), strict=True):
        yield Tensor(a.dtype, one.shape, one.data.cast("B")), Tensor(b.dtype, other.shape, other.data.cast("B"))


def count_experts(sizes: Iterable[str]) -> dict[str, int]:
    """Return the number of experts of each layer, given the names of all modules as `spell_module` has them."""
    numbers: dict[str, set[str]] = {}
    for name in sizes:
        layer, is_there, rest = name.partition(EXPERTS)
        if is_there:
            numbers.setdefault(layer, set()).add(rest.partition(".")[0])
    return {layer: len(some) for layer, some in numbers.items()}


def _order(module: str, outer: Sides, inner: Sides) -> list[str]:
    """Return the stacks of two wrappers: gate and up make twice the inputs of down, and take its outputs."""

    def fits(up: Sides, down: Sides) -> bool:
        return up == (down[1], 2 * down[0])

    if fits(outer, inner):
        return [GATE_UP, DOWN]
    if fits(inner, outer):
        return [DOWN, GATE_UP]
    raise Unsupported(f"{module} has matrices of {outer} and {inner} inputs and outputs, which fit no experts", HINT)
