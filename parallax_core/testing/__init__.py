"""Kits that test each contract, a toy model, and faults that the kits must catch; for tests only."""
