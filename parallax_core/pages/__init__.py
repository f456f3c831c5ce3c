"""Assigns pages of KV memory, alike on a stage and in its head's ledger. Holds no tensor."""
