"""The families there are blocks for: one file each, with the same parts in the same order."""
