"""Whether two nodes count pages alike."""

from __future__ import annotations

PAGES_VERSION = 1
"""Raised whenever the same edits and rows leave another number of free pages than before, in any pool.

The head keeps an account of the pages of each stage, and compares it with what the stage says after every step: both
may run different software, and have to count by the same rules.
"""
