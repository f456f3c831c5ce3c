r"""The rules that cut text into words before a BPE, by the names that GGUF files have for them.

A file names its rule (``tokenizer.ggml.pre``) and does not contain it. Source: the patterns in the ``tokenizer.json``
of the models that each rule is named after, and llama.cpp for which names are the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s+(?!\S)|\s+"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
LLAMA3 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{OTHERS}"
QWEN2 = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{OTHERS}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
)
FIRST, REST = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = r"[^\r\n\p{L}\p{N}]?"
SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{SPACES}"
TEKKEN = rf"{CASED}{FIRST}*{REST}+|{CASED}{FIRST}+{REST}*|\p{{N}}|{SLASHES}"
GPT4O = rf"{CASED}{FIRST}*{REST}+{CONTRACTIONS}?|{CASED}{FIRST}+{REST}*{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SLASHES}"
SEED = rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|{SPACES}"
BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|{SPACES}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
    ),
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule."""

    patterns: tuple[str, ...]
    """What is split off, one after another: matches are words of their own."""
    keeps_words: bool = False
    """Whether a word that is a token stays whole, whatever the merges are."""
    has_bos: bool = False
    """Whether a text begins with a token unless the file says otherwise."""


RULES: dict[str, Rule] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), Rule((LLAMA3,), keeps_words=True, has_bos=True)),
    **dict.fromkeys(("falcon3", "falcon-h1", "pixtral", "lfm2"), Rule((LLAMA3,), keeps_words=True, has_bos=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Rule((LLAMA3,))),
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "olmo", "mpt", "trillion", "granite-docling"), Rule((GPT2,))),
    **dict.fromkeys(("jais", "mellum", "modern-bert", "a.x-4.0", "gigachat"), Rule((GPT2,))),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), Rule((r"\p{N}", GPT2))),
    **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), Rule((r"\p{N}", GPT2))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open"), Rule((QWEN2,))),
    **dict.fromkeys(("grok-2", "kormo", "f2llmv2"), Rule((QWEN2,))),
    "qwen35": Rule((QWEN35,)),
    "tekken": Rule((TEKKEN,), keeps_words=True, has_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), Rule((GPT4O,))),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), Rule(DEEPSEEK3)),
    "deepseek-coder": Rule(DEEPSEEK_CODER),
    "seed-coder": Rule((SEED,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), Rule((BAILING,))),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Rule((BLOOM,))),
    "viking": Rule((BLOOM, r"\p{N}")),
}
"""The rules, by ``tokenizer.ggml.pre``."""
