"""Rebuilds the tokenizer of a GGUF file with the tokenizers library."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from parallax_formats.gguf import Fields, damaged
from parallax_source_pypi.shape import PRE_TOKENIZERS, refuse

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Token types of GGUF that a byte-level BPE has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialIds:
    """The ids of special tokens; None for those that the model lacks."""

    bos: int | None
    eos: int
    pad: int | None
    unknown: int | None
    turn: int | None
    """The token that ends a turn of a conversation, if not ``eos``."""


def read_specials(fields: Fields) -> SpecialIds:
    """Read the special ids.

    Raises:
        ParallaxError: if there is no end-of-text id, or an id names no token.
    """
    size = len(fields.texts("tokenizer.ggml.tokens"))

    def find(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in fields:
            return None
        value = fields.integer(key)
        if not 0 <= value < size:
            raise damaged(f"{key!r} is {value}, and there are {size} tokens")
        return value

    eos = find("eos")
    if eos is None:
        raise damaged("it has no 'tokenizer.ggml.eos_token_id'")
    return SpecialIds(bos=find("bos"), eos=eos, pad=find("padding"), unknown=find("unknown"), turn=find("eot"))


def build_tokenizer(fields: Fields) -> Tokenizer:
    """Build the tokenizer.

    A GGUF file names the rule that cuts text into words (``tokenizer.ggml.pre``) and does not contain it. The rule
    "smollm" is: every digit alone, then the pattern of GPT-2.

    Raises:
        Unsupported: if the tokenizer is of another kind, or has another rule.
        ParallaxError: if tokens, types and merges do not fit together.
    """
    check_kind(fields)
    tokens, types = read_tokens(fields)
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=read_merges(fields, vocab)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL)])
    return tokenizer


def check_kind(fields: Fields) -> None:
    """Refuse tokenizers that would be rebuilt wrongly."""
    kind = fields.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise refuse(f"a tokenizer of the kind {kind!r}")
    rule = fields.text("tokenizer.ggml.pre", "default")
    if rule not in PRE_TOKENIZERS:
        raise refuse(f"a tokenizer with the pre-tokenizer {rule!r}")
    for key in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        if fields.flag(f"tokenizer.ggml.{key}"):
            raise refuse(f"a tokenizer with {key!r}")


def read_tokens(fields: Fields) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, of the same length."""
    tokens, types = fields.texts("tokenizer.ggml.tokens"), fields.integers("tokenizer.ggml.token_type")
    if len(tokens) != len(types) or len(set(tokens)) != len(tokens):
        raise damaged(f"its {len(tokens)} tokens are not distinct, or not as many as its {len(types)} token types")
    unknown = set(types) - {NORMAL, CONTROL, USER_DEFINED, UNUSED}
    if unknown:
        raise refuse(f"a tokenizer with tokens of the type {min(unknown)}")
    return tokens, types


def read_merges(fields: Fields, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges, each checked to join two tokens into a third."""
    merges = []
    for merge in fields.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise damaged(f"the merge {merge[:60]!r} is not about its tokens")
        merges.append((left, right))
    return merges
