"""Converts the tokenizer files of models without ``tokenizer.json``."""
