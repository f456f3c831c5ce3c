"""Writes a tokenizer as GGUF files have it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer

from parallax_core.api import Unsupported
from parallax_quantize.gguf.pieces import FILE, HINT, add_pieces
from parallax_source_pypi.pretokenizers import GPT2, RULES

Json = Mapping[str, Any]
DIGIT = r"\p{N}"
SPECIAL = ("bos", "eos", "pad", "unk")


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, size: int, config: Json) -> None:
    """Add the tokenizer of a model folder, and its chat template.

    Args:
        writer: of the file.
        folder: with ``tokenizer.json``, or with the pieces of SentencePiece.
        size: the rows of the embedding.
        config: config.json.

    Raises:
        Unsupported: if it is of another kind, or cuts words by a rule that llama.cpp has no name for.
        ParallaxError: if a file is damaged.
    """
    data, own = read_object(folder / "tokenizer.json"), read_object(folder / "tokenizer_config.json")
    if is_of_bytes(data) or not (folder / FILE).is_file():
        tokens, tokenizer = add_bytes(writer, data, size), Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokens, tokenizer = add_pieces(writer, folder, size, own)
    add_specials(writer, folder, own, config, {token: number for number, token in enumerate(tokens)})
    add_ends(writer, tokenizer)
    template = folder / "chat_template.jinja"
    text = template.read_text("utf-8") if template.is_file() else own.get("chat_template")
    if isinstance(text, str) and text:
        writer.add_chat_template(text)


def is_of_bytes(data: Json) -> bool:
    """Return whether a tokenizer is a byte-level BPE."""
    model = data.get("model") or {}
    is_other = model.get("byte_fallback") or model.get("continuing_subword_prefix") or not model.get("merges")
    return model.get("type") == "BPE" and not is_other


def add_bytes(writer: gguf.GGUFWriter, data: Json, size: int) -> list[str]:
    """Add a byte-level BPE, and return its tokens; raises as `add_tokenizer` does."""
    if not is_of_bytes(data):
        message = f"GGUF files are written with a byte-level BPE, or with SentencePiece's {FILE}, and this is another"
        raise Unsupported(message, HINT)
    if (data.get("normalizer") or {"type": "NFC"})["type"] != "NFC":  # llama.cpp normalises nothing
        raise Unsupported(f"a tokenizer with the normalizer {data['normalizer']['type']} is not written as GGUF", HINT)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(find_rule(data))
    tokens, types = list_tokens(data, size)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = data["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_add_space_prefix(value=False)
    return tokens


def find_rule(data: Json) -> str:
    """Return llama.cpp's name of the rule that cuts text into words."""
    patterns = tuple(list_patterns(data.get("pre_tokenizer") or {}))
    keeps_words = bool(data["model"].get("ignore_merges"))
    found = [name for name, rule in RULES.items() if (rule.patterns, rule.keeps_words) == (patterns, keeps_words)]
    if not found:
        raise Unsupported(f"llama.cpp has no name for the pre-tokenizer {' then '.join(patterns)[:200]!r}", HINT)
    return found[0]


def list_patterns(step: Json) -> Iterator[str]:
    """Yield the patterns that a pre-tokenizer splits off.

    Raises:
        Unsupported: if it does anything else.
    """
    kind = step.get("type")
    if kind == "Sequence":
        for each in step["pretokenizers"]:
            yield from list_patterns(each)
    elif (
        kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert") and "Regex" in step["pattern"]
    ):
        yield step["pattern"]["Regex"]
    elif kind == "Digits" and step.get("individual_digits"):
        yield DIGIT
    elif kind == "ByteLevel" and not step.get("add_prefix_space"):
        if step.get("use_regex", True):
            yield GPT2
    else:
        raise Unsupported(f"a tokenizer with the pre-tokenizer {kind} of these settings is not written as GGUF", HINT)


def list_tokens(data: Json, size: int) -> tuple[list[str], list[int]]:
    """Return the tokens by id, and their types; ids without a token get one that is never used."""
    found = dict.fromkeys(range(size), ("", int(gguf.TokenType.UNUSED)))
    found |= {number: (token, int(gguf.TokenType.NORMAL)) for token, number in data["model"]["vocab"].items()}
    for each in data.get("added_tokens") or ():
        kind = gguf.TokenType.CONTROL if each["special"] else gguf.TokenType.USER_DEFINED
        found[each["id"]] = (each["content"], int(kind))
    if len(found) > size:
        raise Unsupported(f"the tokenizer has {len(found)} tokens, and the model {size}", HINT)
    named = [(token or f"[PAD{number}]", kind) for number, (token, kind) in sorted(found.items())]
    return [token for token, _ in named], [kind for _, kind in named]


def add_specials(writer: gguf.GGUFWriter, folder: Path, own: Json, config: Json, numbers: Mapping[str, int]) -> None:
    """Add the ids of the tokens that begin and end texts, by the settings of the tokenizer, else of the model."""
    ends = read_object(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    ends = [each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int)]
    found: dict[str, int | None] = {}
    for name in SPECIAL:
        token = own.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        number = numbers.get(token) if isinstance(token, str) else config.get(f"{name}_token_id")
        found[name] = number if isinstance(number, int) else None
    if found["eos"] is None:
        found["eos"] = ends[0] if ends else None
    adds = (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id, writer.add_unk_token_id)
    for name, add in zip(SPECIAL, adds, strict=True):
        if (number := found[name]) is not None:
            add(number)
    if turn := next((each for each in ends if each != found["eos"]), None):
        writer.add_eot_token_id(turn)


def add_ends(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add which tokens texts get before and behind them."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=each).ids for each in (False, True))
    writer.add_add_bos_token(value=whole[: len(plain)] != plain)
    writer.add_add_eos_token(value=whole[-len(plain) :] != plain)


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object, an empty one if the file is missing."""
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
