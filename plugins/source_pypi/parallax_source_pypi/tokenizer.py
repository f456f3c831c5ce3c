"""Rebuilds the tokenizer of a GGUF file with the tokenizers library."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from parallax_formats.gguf import Fields, damaged
from parallax_source_pypi.errors import refuse
from parallax_source_pypi.pretokenizers import RULES
from parallax_tokenizers.merges import list_merges

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of tokens."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


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
    """Build the tokenizer: a byte-level BPE, or pieces of SentencePiece.

    Raises:
        Unsupported: if the tokenizer is of another kind, or has a rule that is not known.
        ParallaxError: if tokens, types and merges do not fit together.
    """
    kind = fields.text("tokenizer.ggml.model")
    if kind not in KINDS:
        raise refuse(f"a tokenizer of the kind {kind!r}")
    tokens, types = read_tokens(fields)
    tokenizer, has_bos = KINDS[kind](fields, tokens, types)
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    add_ends(tokenizer, fields, tokens, has_bos=has_bos)
    return tokenizer


def build_bytes(fields: Fields, tokens: list[str], types: list[int]) -> tuple[Tokenizer, bool]:
    """Return a byte-level BPE, and whether its texts begin with a token unless the file says otherwise."""
    name = fields.text("tokenizer.ggml.pre", "default")
    if name not in RULES:
        raise refuse(f"a tokenizer with the pre-tokenizer {name!r}")
    if unknown := set(types) - {NORMAL, CONTROL, USER_DEFINED, UNUSED}:
        raise refuse(f"a tokenizer with tokens of the type {min(unknown)}")
    if fields.flag("tokenizer.ggml.add_space_prefix"):
        raise refuse("a tokenizer with 'add_space_prefix'")
    rule, vocab = RULES[name], {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=read_merges(fields, vocab), ignore_merges=rule.keeps_words))
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.has_bos


def build_pieces(fields: Fields, tokens: list[str], types: list[int]) -> tuple[Tokenizer, bool]:
    """Return the pieces of SentencePiece, of which those with the best scores are joined first."""
    scores = fields.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise damaged(f"there are {len(scores)} scores for {len(tokens)} tokens")
    if unknown := set(types) - {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE}:
        raise refuse(f"a tokenizer with tokens of the type {min(unknown)}")
    normal = [number for number, kind in enumerate(types) if kind == NORMAL]
    ranked = [tokens[number] for number in sorted(normal, key=lambda number: -scores[number])]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=list(list_merges(ranked, set(ranked))),
            unk_token=next((tokens[number] for number, kind in enumerate(types) if kind == UNKNOWN), None),
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    has_prefix = "tokenizer.ggml.add_space_prefix" not in fields or fields.flag("tokenizer.ggml.add_space_prefix")
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return tokenizer, True


def add_ends(tokenizer: Tokenizer, fields: Fields, tokens: list[str], *, has_bos: bool) -> None:
    """Add the tokens that texts begin and end with, as the file or the kind of tokenizer says."""
    specials = read_specials(fields)
    key = "tokenizer.ggml.add_bos_token"
    begins = fields.flag(key) if key in fields else has_bos
    front = [specials.bos] if begins and specials.bos is not None else []
    back = [specials.eos] if fields.flag("tokenizer.ggml.add_eos_token") else []
    if not front and not back:
        return
    names = {tokens[number]: number for number in (*front, *back)}
    around = [*(tokens[number] for number in front), "{}", *(tokens[number] for number in back)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[each.format("$A") if each == "{}" else each for each in around],
        pair=[*(each.format("$A") if each == "{}" else each for each in around), "$B:1"],
        special_tokens=list(names.items()),
    )


KINDS = {"gpt2": build_bytes, "llama": build_pieces}
"""What builds a tokenizer, by ``tokenizer.ggml.model``."""


def read_tokens(fields: Fields) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, of the same length."""
    tokens, types = fields.texts("tokenizer.ggml.tokens"), fields.integers("tokenizer.ggml.token_type")
    if len(tokens) != len(types) or len(set(tokens)) != len(tokens):
        raise damaged(f"its {len(tokens)} tokens are not distinct, or not as many as its {len(types)} token types")
    return tokens, types


def read_merges(fields: Fields, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges, each checked to join two tokens into a third."""
    merges = []
    for merge in fields.texts("tokenizer.ggml.merges"):
        left, right = split_merge(merge)
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise damaged(f"the merge {merge[:60]!r} is not about its tokens")
        merges.append((left, right))
    return merges


def split_merge(merge: str) -> tuple[str, str]:
    """Return the two tokens of a merge; the first may begin with a space."""
    place = merge.find(" ", 1)
    return (merge[:place], merge[place + 1 :]) if place > 0 else (merge, "")
