"""What surrounds a model's tensors: its folder, adapter, backend, tokenizer and template. It computes nothing."""
