"""All about a model but its computation: folder, adapter, backend choice, tokenizer, chat template."""
