"""Who holds which page of KV memory: chosen by core, the same on a stage and in its head's ledger."""
