"""LoRA adapters: a reader of PEFT's format, the loaded adapters of a server, and their routes."""
