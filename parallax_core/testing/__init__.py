"""What plugins are tested with: a toy model, kits that test each contract, and faults the kits have to catch."""
