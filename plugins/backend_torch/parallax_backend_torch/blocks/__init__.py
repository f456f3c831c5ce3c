"""Model families with blocks of this backend: one file each, with the same parts in the same order."""
