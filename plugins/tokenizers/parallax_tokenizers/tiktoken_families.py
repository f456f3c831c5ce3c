"""Lists how families split text before merging, and their special tokens, for files of tiktoken.

Each row is of the tokenizer that a model publishes as code, which is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from parallax_core.api import Unsupported

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS_ALONE = rf"{WORDS}|\p{{N}}|{REST}"
THREE_DIGITS = rf"{WORDS}|\p{{N}}{{1,3}}|{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
BEFORE, AFTER = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
HAN_APART = rf"[\p{{Han}}]+|{BEFORE}{UPPER}*{LOWER}+{AFTER}|{BEFORE}{UPPER}+{LOWER}*{AFTER}|\p{{N}}{{1,3}}|{REST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenFamily:
    """How a family uses its file."""

    classes: tuple[str, ...]
    """The names of its tokenizer in ``tokenizer_class``."""
    file: str
    """The pattern of the file's name."""
    pattern: str
    """The regular expression of what is merged by itself, in the syntax of Rust."""
    special: tuple[str, ...] = ()
    """The tokens after those of the file."""
    filler: str = "<|reserved_token_{}|>"
    """The text of an id that has no token, with ``{}`` for it."""
    num_reserved: int = 0
    """How many ids come after those of the file, at least."""
    is_composed: bool = False
    """Whether text is brought to the form NFC first."""
    has_bos: bool = False
    """Whether a text begins with a token unless the settings say otherwise."""


def _extras(count: int) -> tuple[str, ...]:
    return tuple(f"<|extra_{number}|>" for number in range(count))


def _list_llama3() -> tuple[str, ...]:
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(251)]
    named = ["<|begin_of_text|>", "<|end_of_text|>", *reserved[:4], "<|start_header_id|>", "<|end_header_id|>"]
    return (*named, reserved[4], "<|eot_id|>", *reserved[5:])


FAMILIES = (
    TiktokenFamily(  # Kimi and Moonlight
        classes=("TikTokenTokenizer",), file="tiktoken.model", pattern=HAN_APART, num_reserved=256
    ),
    TiktokenFamily(  # the first Qwen
        classes=("QWenTokenizer",),
        file="qwen.tiktoken",
        pattern=DIGITS_ALONE,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_extras(205)),
        is_composed=True,
    ),
    TiktokenFamily(
        classes=("HYTokenizer",),
        file="hy.tiktoken",
        pattern=DIGITS_ALONE,
        special=("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_extras(205)),
        is_composed=True,
    ),
    TiktokenFamily(classes=("ChatGLM4Tokenizer",), file="", pattern=THREE_DIGITS),
    TiktokenFamily(  # Llama 3, as Meta publishes it
        classes=("PreTrainedTokenizerFast",),
        file="tokenizer.model",
        pattern=THREE_DIGITS,
        special=_list_llama3(),
        has_bos=True,
    ),
)


def choose_family(file: Path, settings: Mapping[str, Any]) -> TiktokenFamily:
    """Return the family of a file: by its class, else by its name.

    Raises:
        Unsupported: if it is of none.
    """
    name = str(settings.get("tokenizer_class", ""))
    named = [family for family in FAMILIES if name in family.classes]
    if found := named or [family for family in FAMILIES if not name and fnmatchcase(file.name, family.file)]:
        return found[0]
    known = ", ".join(each for family in FAMILIES for each in family.classes)
    message = f"{file} cannot be converted: it does not say how text is split, and its tokenizer {name!r} is not known"
    raise Unsupported(message, f"use a model with a tokenizer.json; known tokenizers: {known}")
