"""Converts files of tiktoken, so that they encode and decode as the library does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parallax_tokenizers.added_tokens import add_special, place_added, read_added
from parallax_tokenizers.merges import list_merges
from parallax_tokenizers.ranks_file import read_ranks
from parallax_tokenizers.tiktoken_families import choose_family


def convert_tiktoken(file: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a file of tiktoken.

    Raises:
        ParallaxError: if the file is damaged or too large.
        Unsupported: if its family is not known.
    """
    family, ranks, listed = choose_family(file, settings), read_ranks(file), read_added(file, settings)
    first = len(ranks)
    special = {first + index: AddedToken(text, special=True) for index, text in enumerate(family.special)}
    added = {**special, **listed}
    texts = place_added([write_token(token) for token in ranks], dict(sorted(added.items())), family.filler)
    texts += [family.filler.format(number) for number in range(len(texts), first + family.num_reserved)]
    fillers = [AddedToken(text, special=True) for text in texts[first:]]
    merges = list_merges(ranks, set(ranks))
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: number for number, text in enumerate(texts)},
            merges=[(write_token(left), write_token(right)) for left, right in merges],
            ignore_merges=True,
        )
    )
    if family.is_composed:
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(family.pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    add_special(tokenizer, [*fillers, *added.values()], _name_bos(family.special, settings), (family.has_bos, False))
    return tokenizer


def _name_bos(special: tuple[str, ...], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"bos_token": special[0] if special else "", **settings}


@cache
def _list_letters() -> list[str]:
    """Return the letter that stands for each byte in vocabularies like that of GPT-2 (its encoder.py)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def write_token(token: bytes) -> str:
    """Return a token with a letter for each byte."""
    letters = _list_letters()
    return "".join(letters[byte] for byte in token)
