"""Reads the tokens that the settings of a tokenizer add to its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from parallax_tokenizers.limits import MOST_TOKENS, damaged

FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


def read_added(file: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens in ``added_tokens_decoder`` by id, in their order.

    Raises:
        ParallaxError: if they are damaged, or too many.
    """
    listed = settings.get("added_tokens_decoder") or {}
    try:
        entries = {int(number): _read_token(entry) for number, entry in listed.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(file, "'added_tokens_decoder' beside it is damaged") from error
    if not all(0 <= number < MOST_TOKENS for number in entries):
        raise damaged(file, f"'added_tokens_decoder' beside it has an id that is not below {MOST_TOKENS}")
    return dict(sorted(entries.items()))


def _read_token(entry: Mapping[str, Any]) -> AddedToken:
    content = entry["content"]
    if not isinstance(content, str) or not content:
        raise ValueError(content)
    return AddedToken(content, **{name: entry[name] for name in FLAGS if isinstance(entry.get(name), bool)})


def place_added(texts: Sequence[str], added: Mapping[int, AddedToken], filler: str) -> list[str]:
    """Return the texts of all tokens by id, with ``added`` in their places.

    Args:
        texts: of the vocabulary.
        added: see `read_added`.
        filler: the text of an id that nothing has, with ``{}`` for it.
    """
    placed, known = list(texts), set(texts)
    for number, token in added.items():
        placed += [filler.format(each) for each in range(len(placed), number + 1)]
        if token.content not in known:
            placed[number] = token.content
    return placed


def add_special(
    tokenizer: Tokenizer, tokens: Iterable[AddedToken], settings: Mapping[str, Any], defaults: Sequence[bool]
) -> None:
    """Mark tokens of the vocabulary as added ones, and put the tokens around texts that the settings ask for.

    Args:
        tokenizer: whose vocabulary has the tokens.
        tokens: they take the place of earlier ones of the same text.
        settings: with ``add_bos_token``, ``bos_token`` and the same for ``eos``.
        defaults: whether to begin, and to end, a text with a token where the settings do not say.
    """
    unique = {token.content: token for token in tokens}
    tokenizer.add_tokens(list(unique.values()))
    parts, named = ["$A"], []
    for name, default in zip(("bos", "eos"), defaults, strict=True):
        stated, text = settings.get(f"add_{name}_token"), read_text(settings.get(f"{name}_token"))
        number = tokenizer.token_to_id(text) if text else None
        if number is None or not (stated if isinstance(stated, bool) else default):
            continue
        parts = [text, *parts] if name == "bos" else [*parts, text]
        named.append((text, number))
    if named:
        pair = [*parts, *("$B:1" if part == "$A" else f"{part}:1" for part in parts)]
        tokenizer.post_processor = processors.TemplateProcessing(single=parts, pair=pair, special_tokens=named)


def read_text(token: object) -> str:
    """Return the text of a token as settings write it; empty: none."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
