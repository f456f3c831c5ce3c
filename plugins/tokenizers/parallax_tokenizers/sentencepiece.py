"""Converts models of SentencePiece, BPE and unigram; they encode and decode as the library does.

The library normalizes a text, puts a mark for a space in front, and splits the whole. Where ``tokenizers`` splits text
at special tokens first, each part in between is treated so, or with ``"legacy": false`` only the first one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parallax_tokenizers.added_tokens import add_special, place_added, read_added
from parallax_tokenizers.merges import list_merges
from parallax_tokenizers.sentencepiece_file import BPE, PieceType, SentencePieceFile, cannot_convert, read_sentencepiece

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
FILLER = "<|unused_{}|>"
UNKNOWN_PENALTY = 10.0
"""How much less likely unknown text is than the least likely piece (unigram_model.cc)."""
DEFINED_SCORE = 0.1
"""The score of a piece that a user defined, for each byte after the first (unigram_model.cc)."""
KNOWN_MAPS = ("nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf")
"""The maps of characters that come with the library."""
MOST_UNREACHED = 4096
"""The most texts of tokens that text never becomes, which a pattern for each part of a text has to list."""
SEPARATOR = "\U000e0000"
"""A character that no text has and that none combines with."""
WITH_BOS = {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer", "GemmaTokenizerFast"}
"""The classes of transformers that begin a text with a token unless told otherwise."""


def convert_sentencepiece(file: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a model of SentencePiece.

    Raises:
        ParallaxError: if the file is damaged or too large.
        Unsupported: if it is of a kind that cannot be converted.
    """
    found, added = read_sentencepiece(file), read_added(file, settings)
    texts = place_added([piece.text for piece in found.pieces], added, FILLER)
    prefix = settings.get("add_prefix_space")
    has_prefix = prefix if isinstance(prefix, bool) else found.add_dummy_prefix
    defined = _list_defined(found)
    tokenizer = Tokenizer(_build_bpe(found, texts) if found.kind == BPE else _build_unigram(found, texts))
    is_plain = not (has_prefix or found.remove_extra_whitespaces or found.precompiled_charsmap)
    isolated = _isolate(file, tokenizer, texts, defined) if found.kind == BPE and not is_plain and defined else []
    parted = _part_looks(found, texts) if found.kind != BPE else []
    tokenizer.normalizer = normalizers.Sequence(_list_normalizers(found))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*_list_prefixes(settings, has_prefix=has_prefix), *isolated, *parted]
    )
    tokenizer.decoder = _choose_decoder(found, has_prefix=has_prefix or found.remove_extra_whitespaces)
    marked = (
        [] if isolated or found.kind != BPE else [AddedToken(each, normalized=True, special=False) for each in defined]
    )
    control = [
        AddedToken(each, normalized=False, special=True)
        for each in found.list_texts(PieceType.CONTROL, PieceType.UNKNOWN)
    ]
    stated = {**_name_ends(found), **settings}
    has_bos = settings.get("tokenizer_class") in WITH_BOS
    add_special(tokenizer, [*marked, *control, *added.values()], stated, (has_bos, False))
    return tokenizer


def _list_defined(found: SentencePieceFile) -> list[str]:
    """Return the pieces that text is split at before all else, longest first."""
    return sorted(found.list_texts(PieceType.USER_DEFINED), key=len, reverse=True)


def _build_bpe(found: SentencePieceFile, texts: Sequence[str]) -> models.BPE:
    vocab = {text: number for number, text in enumerate(texts)}
    pieces = [piece for piece in found.pieces if piece.type == PieceType.NORMAL]
    known = {piece.text for piece in pieces if piece.text in vocab}
    ranked = [piece.text for piece in sorted(pieces, key=lambda piece: -piece.score) if piece.text in known]
    [unknown] = found.list_texts(PieceType.UNKNOWN)
    return models.BPE(
        vocab=vocab,
        merges=list(list_merges(ranked, known)),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=found.byte_fallback,
    )


def _build_unigram(found: SentencePieceFile, texts: Sequence[str]) -> models.Unigram:
    """Return the model, in which pieces that are no text are so unlikely that text never becomes one."""
    scores = [piece.score for piece in found.pieces if piece.type == PieceType.NORMAL] or [0.0]
    never = (min(scores) - UNKNOWN_PENALTY) * 2 * max(map(len, texts))
    vocab = [(text, never) for text in texts]
    for number, piece in enumerate(found.pieces):
        if piece.type == PieceType.NORMAL:
            vocab[number] = (texts[number], piece.score)
        elif piece.type == PieceType.USER_DEFINED:
            vocab[number] = (texts[number], DEFINED_SCORE * (len(piece.text.encode()) - 1))
    unknown = next(number for number, piece in enumerate(found.pieces) if piece.type == PieceType.UNKNOWN)
    return models.Unigram(vocab, unk_id=unknown, byte_fallback=found.byte_fallback)


def _part_looks(found: SentencePieceFile, texts: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    """Return what splits texts that look like unused, control and byte pieces, at a character that no piece covers.

    ``tokenizers`` takes such a character to be less likely than the least likely piece, so scores do not keep them
    apart. It is a token of its own, so that nothing else is split otherwise.
    """
    pieces, looks = list[str](), list[str]()
    for piece, text in zip(found.pieces, texts, strict=False):
        is_text = piece.type in {PieceType.NORMAL, PieceType.USER_DEFINED}
        (pieces if is_text else looks).append(text)
    rare = set("".join(looks)).difference(pieces)  # in longer pieces only, or in none
    longer = [piece for piece in pieces if not rare.isdisjoint(piece)]
    patterns: dict[str, list[str]] = {"merged_with_previous": [], "merged_with_next": []}
    for text in looks:
        places = (place for place, each in enumerate(text) if each in rare and not _is_covered(text, place, longer))
        at = next(places, None)
        if at is not None and len(text) > 1:
            head, tail = re.escape(text[:at]), re.escape(text[at + 1 :])
            pattern = f"(?<={head})" * bool(head) + re.escape(text[at]) + f"(?={tail})" * bool(tail)
            patterns["merged_with_previous" if tail else "merged_with_next"].append(pattern)
    return [pre_tokenizers.Split(Regex("|".join(each)), side) for side, each in patterns.items() if each]


def _is_covered(text: str, at: int, pieces: Sequence[str]) -> bool:
    """Return whether a piece can cover a character of a text, whatever stands before and behind the text."""
    for piece in pieces:
        for place, character in enumerate(piece):
            first = at - place
            if character == text[at] and all(
                text[each] == piece[each - first] for each in range(max(0, first), min(len(text), first + len(piece)))
            ):
                return True
    return False


def _isolate(
    file: Path, tokenizer: Tokenizer, texts: Sequence[str], defined: Sequence[str]
) -> list[pre_tokenizers.PreTokenizer]:
    """Look up parts of a text as whole tokens first, and return what splits it into defined pieces and others.

    Added tokens cannot stand for the defined pieces: a text that begins with one would get no mark for a space.

    Raises:
        Unsupported: if other parts than defined pieces would become other tokens by that.
    """
    model = tokenizer.model
    ends: dict[str, list[str]] = {}
    for text in sorted(set(texts).difference(defined)):
        split = model.tokenize(text)
        if [token.value for token in split] != [text]:
            head = _cut_first(text, split)
            ends.setdefault(head, []).append(text[len(head) :])
    if "" in ends or sum(map(len, ends.values())) > MOST_UNREACHED:
        raise cannot_convert(file, "defines pieces, and has others that no text becomes")
    model.ignore_merges = True
    # A part that looks like a token, but is none as text, is split where its first token ends: that is what it becomes.
    looks = "|".join(f"{re.escape(head)}(?=(?:{_join(tails)})\\z)" for head, tails in sorted(ends.items()))
    patterns = (_join(defined), f"\\A(?:{looks})" if ends else "")
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns if pattern]


def _cut_first(text: str, split: Sequence[Any]) -> str:
    """Return the part of a text that its first token stands for, or as many as end within a character; empty: all."""
    data = text.encode()
    starts = {len(text[:at].encode()) for at in range(1, len(text))}
    cut = min((start for _, start in (token.offsets for token in split) if start in starts), default=0)
    return data[:cut].decode()


def _join(texts: Sequence[str]) -> str:
    return "|".join(map(re.escape, texts))


def _list_normalizers(found: SentencePieceFile) -> list[normalizers.Normalizer]:
    steps = _list_maps(found) if found.precompiled_charsmap else []
    if found.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return [*steps, normalizers.Replace(" ", SPACE)]


def _list_maps(found: SentencePieceFile) -> list[normalizers.Normalizer]:
    """Return what maps characters.

    ``Precompiled`` alone drops a mark that follows a mapped character, since it looks up both as one. The usual maps
    are NFKC and more: after it they map single characters, which a separator keeps apart.
    """
    maps = normalizers.Precompiled(found.precompiled_charsmap)
    if found.map_name not in KNOWN_MAPS:
        return [maps]
    apart = normalizers.Replace(Regex(r"(?<=[\s\S])(?=[\s\S])"), SEPARATOR)
    return [normalizers.NFKC(), apart, maps, normalizers.Replace(SEPARATOR, "")]


def _list_prefixes(settings: Mapping[str, Any], *, has_prefix: bool) -> list[pre_tokenizers.PreTokenizer]:
    """Return what puts the mark in front, also of a text that begins with one.

    The first step would leave out a second space, but no space is left at that time; the second makes a mark of it.
    """
    if not has_prefix:
        return []
    scheme = "first" if settings.get("legacy") is False else "always"
    return [
        pre_tokenizers.Metaspace(replacement=" ", prepend_scheme=scheme, split=False),
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False),
    ]


def _choose_decoder(found: SentencePieceFile, *, has_prefix: bool) -> decoders.Decoder:
    if not found.list_texts(PieceType.BYTE):
        return decoders.Metaspace(replacement=SPACE, prepend_scheme="always" if has_prefix else "never")
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)


def _name_ends(found: SentencePieceFile) -> dict[str, str]:
    """Return the tokens that begin and end texts, as the model has them."""
    named = {"bos_token": found.bos_id, "eos_token": found.eos_id}
    return {name: found.pieces[number].text for name, number in named.items() if 0 <= number < len(found.pieces)}
