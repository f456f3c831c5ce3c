"""Kits that test each contract, a toy model, and faults that the kits must catch. Only tests import it."""
