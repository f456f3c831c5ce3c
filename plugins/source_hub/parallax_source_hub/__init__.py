"""The model source ``hf``: models of the Hugging Face hub, fetched whole or by layers."""
