"""The routes of the tokenizer, as vLLM has them."""
