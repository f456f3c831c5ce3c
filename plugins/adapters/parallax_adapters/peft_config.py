"""Reads the settings of a LoRA adapter in PEFT's format, ``adapter_config.json``.

The fields: https://huggingface.co/docs/peft/package_reference/lora. Those that change what is computed, in a way that
is not supported here, are refused by name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from parallax_adapters.expressions import Expression
from parallax_adapters.peft_experts import check_parameters, list_ends
from parallax_core.api import Unsupported

T = TypeVar("T")

CONFIG = "adapter_config.json"
MOST_CONFIG_BYTES = 2**20
"""The most bytes of a configuration; PEFT's own have a few thousand."""
MOST_RANK = 2**14
"""The largest rank that is read, whatever a server allows."""
MOST_PATTERNS = 4096
"""The most entries of a pattern."""
LARGEST_SCALE = 1e6
"""The largest factor of an adapter: beyond it, answers are noise or overflow."""
HINT = "train it as plain LoRA, or merge it into its base model"
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
    "lora_bias": (None, False),
    "fan_in_fan_out": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "velora_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "kappa_tune_config": (None,),
    "megatron_config": (None,),
    "ensure_weight_tying": (None, False),
}
"""Fields that are refused with any other value than these: they change more than the products of matrices."""
INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""The values of ``init_lora_weights`` that leave the base model as it is."""
PLAIN_PATTERN = re.compile(r"\^?(?:[\w.-]|\\\.)+\$?")
"""Matches a pattern that is the name of a module or its end; others are regular expressions."""
MOST_EXPRESSIONS = 64
"""The most regular expressions of a pattern."""


@dataclass(frozen=True, slots=True)
class Pattern(Generic[T]):
    """Values of modules that have their own, as PEFT's patterns give them; the first that matches counts."""

    names: Mapping[str, tuple[int, T]]
    """By the end of a module's name, or all of it after ``^``: the place in the pattern, and the value."""
    expressions: Sequence[tuple[int, T, Expression]] = ()

    def find(self, module: str) -> T | None:
        """Return the value of a module, by its whole name in the model; None: no key matches."""
        found = [self.names[key] for key in (f"^{module}", *list_ends(module)) if key in self.names]
        found += [(place, value) for place, value, each in self.expressions if each.matches(module)]
        return min(found, key=itemgetter(0))[1] if found else None

    def list_values(self) -> list[T]:
        """Return all values."""
        return [*(value for _, value in self.names.values()), *(value for _, value, _ in self.expressions)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """The settings of an adapter that say what it computes."""

    rank: int
    alpha: float
    is_rank_stabilized: bool = False
    """Whether the scale is divided by the square root of the rank (rsLoRA, arXiv 2312.03732)."""
    ranks: Pattern[int]
    alphas: Pattern[float]
    parameters: frozenset[str] = frozenset()
    """The stacks of experts that it changes, by their names or the ends of these."""

    @property
    def largest_rank(self) -> int:
        """The largest rank that a module can have."""
        return max([self.rank, *self.ranks.list_values()])

    @property
    def num_expressions(self) -> int:
        """The regular expressions that a module may be held against."""
        return len(self.ranks.expressions) + len(self.alphas.expressions)

    @property
    def is_plain(self) -> bool:
        """Whether all modules have the same rank, and a scale that is alpha divided by it."""
        has_patterns = self.ranks.list_values() or self.alphas.list_values()
        return not self.is_rank_stabilized and not has_patterns and not self.parameters

    def find_rank(self, module: str) -> int:
        """Return the rank of a module, by its name in the model."""
        return self.ranks.find(module) or self.rank

    def find_scale(self, module: str) -> float:
        """Return the factor of the products of a module."""
        rank, alpha = self.find_rank(module), self.alphas.find(module)
        return (self.alpha if alpha is None else alpha) / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def parse_config(text: bytes) -> LoraConfig:
    """Return the settings in the bytes of ``adapter_config.json``.

    Raises:
        Unsupported: if it is not LoRA as this server computes it; the message names the field.
    """
    fields = _decode(text)
    if fields.get("peft_type") != "LORA":
        raise Unsupported(f"peft_type is {_show(fields.get('peft_type'))}; supported is 'LORA'", HINT)
    for name, values in NEUTRAL.items():
        if not any(fields.get(name) == value and type(fields.get(name)) is type(value) for value in values):
            what = "DoRA" if name == "use_dora" else name
            raise Unsupported(f"{what} is not supported: {name} is {_show(fields.get(name))}", HINT)
    init = fields.get("init_lora_weights")
    if not any(init is value or (isinstance(init, str) and init == value) for value in INITS):
        raise Unsupported(f"init_lora_weights is {_show(init)}, which changes the base model", "convert it with PEFT")
    rank = _read_rank("r", fields.get("r", 8))
    return LoraConfig(
        rank=rank,
        alpha=_read_alpha("lora_alpha", fields.get("lora_alpha", 8)),
        is_rank_stabilized=_read_flag(fields, "use_rslora"),
        ranks=_read_pattern(fields, "rank_pattern", _read_rank),
        alphas=_read_pattern(fields, "alpha_pattern", _read_alpha),
        parameters=_read_parameters(fields.get("target_parameters") or []),
    )


def _decode(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text, object_pairs_hook=read_pairs)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{CONFIG} is not valid JSON: {error}", "copy the adapter again") from error
    if not isinstance(fields, dict):
        raise Unsupported(f"{CONFIG} is not a JSON object", "copy the adapter again")
    return fields


def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises ValueError if it has a key twice, of which readers may take one or the other."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"{_show(twice)} is there twice")
    return found


def _read_flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value not in (None, False, True):
        raise Unsupported(f"{name} is {_show(value)}, and must be true or false")
    return bool(value)


def _read_rank(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_RANK:
        raise Unsupported(f"{name} has the rank {_show(value)}; it must be between 1 and {MOST_RANK}")
    return value


def _read_alpha(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_SCALE:
        raise Unsupported(f"{name} is {_show(value)}; it must be a number of at most {LARGEST_SCALE:.0f}")
    return float(value)


def _read_pattern(fields: Mapping[str, Any], name: str, read: Callable[[str, object], T]) -> Pattern[T]:
    pattern = fields.get(name) or {}
    if not isinstance(pattern, dict) or len(pattern) > MOST_PATTERNS:
        raise Unsupported(f"{name} must be an object of at most {MOST_PATTERNS} entries")
    names: dict[str, tuple[int, T]] = {}
    expressions: list[tuple[int, T, Expression]] = []
    for place, (key, value) in enumerate(pattern.items()):
        found = read(name, value)
        if PLAIN_PATTERN.fullmatch(key):
            names.setdefault(key.removesuffix("$").replace("\\.", "."), (place, found))
        else:
            expressions.append((place, found, _parse_expression(name, key)))
    if len(expressions) > MOST_EXPRESSIONS:
        raise Unsupported(f"{name} has {len(expressions)} regular expressions; at most {MOST_EXPRESSIONS} are read")
    return Pattern(names, expressions)


def _read_parameters(names: object) -> frozenset[str]:
    if not isinstance(names, list) or len(names) > MOST_PATTERNS or not all(isinstance(each, str) for each in names):
        raise Unsupported(f"target_parameters must be a list of at most {MOST_PATTERNS} names")
    check_parameters(names)
    return frozenset(names)


def _parse_expression(name: str, key: str) -> Expression:
    """Return the expression that PEFT matches modules with: from their beginning, or from any word on."""
    bare = key.removeprefix("^").removesuffix("$")
    try:
        return Expression(f"({bare})" if key.startswith("^") else f"(.*\\.)?({bare})")
    except Unsupported as error:
        raise Unsupported(f"{name}: {error.message}", error.hint) from error


def _show(value: object) -> str:
    return repr(value)[:80]
