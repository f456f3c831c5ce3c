"""Writes a model folder with a tokenizer in which every byte is a token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}>"


def write_model(folder: Path, template: str = TEMPLATE, split: str = "") -> Path:
    """Write the tokenizer and config files; ``split`` is a regular expression that splits texts beforehand."""
    vocab = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "config.json", eos_token_id=7)
    write(folder, "tokenizer_config.json", eos_token={"content": "<end>"}, chat_template=template)
    return folder


def write(folder: Path, name: str, **content: Any) -> None:
    """Write a JSON file."""
    (folder / name).write_text(json.dumps(content))
