"""Reads the tokenizer of a model folder, as ``AutoTokenizer`` of transformers does.

``tokenizer.json`` is not all of it: its stored truncation and padding are settings of training, and the files beside it
name special tokens and add tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from parallax_core.base.errors import ParallaxError
from parallax_core.base.faults import ENDINGS
from parallax_core.base.files import read_object
from parallax_core.models.decoder_check import check_decoder

STANDARD = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names of special tokens that every tokenizer may have."""
FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
"""The properties of an added token."""


def read_optional(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing.

    Raises:
        ParallaxError: if the file is damaged.
    """
    return read_object(path) if path.exists() else {}


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return ``tokenizer_config.json``, completed by ``special_tokens_map.json`` if it lists no added tokens.

    Raises:
        ParallaxError: if a file is damaged.
    """
    settings = read_optional(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= read_optional(folder / "special_tokens_map.json")
    return settings


def read_special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each named special token, for chat templates; those without text are left out."""
    named = {name: _text(settings.get(name)) for name in STANDARD}
    own = {name: text for name, text in settings.items() if name.endswith("_token") and isinstance(text, str)}
    extra = settings.get("extra_special_tokens")
    further = {name: _text(token) for name, token in extra.items()} if isinstance(extra, dict) else {}
    return {name: text for name, text in {**own, **named, **further}.items() if text}


def load_tokenizer(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a model with the tokens added by ``settings``, without truncation or padding.

    Args:
        path: of its ``tokenizer.json``.
        settings: see `read_tokenizer_settings`.

    Raises:
        ParallaxError: if it cannot be read, or decoding could take for ever.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _add_tokens(tokenizer, settings)
    except ENDINGS:
        raise
    except BaseException as error:  # the library raises bare Exception for any fault of the file, or panics
        message = f"{path} cannot be read: {error}"
        raise ParallaxError(message, "fetch the model again") from error
    check_decoder(tokenizer)
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Add the tokens that the settings list under the id that they get, and mark the named ones as special."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    listed = settings.get("added_tokens_decoder")
    entries = {int(number): entry for number, entry in listed.items()} if isinstance(listed, dict) else {}
    for number, entry in sorted(entries.items(), key=itemgetter(0)):
        content = entry["content"]
        found = tokenizer.token_to_id(content)
        if content not in known and number == (tokenizer.get_vocab_size() if found is None else found):
            tokenizer.add_tokens([_added(entry)])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    named = set(read_special_tokens(settings).values()) - special
    unmarked = sorted(name for name in named if tokenizer.token_to_id(name) is not None)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in unmarked])


def _added(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: entry[name] for name in FLAGS if isinstance(entry.get(name), bool)}
    return AddedToken(entry["content"], **flags)


def _text(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
