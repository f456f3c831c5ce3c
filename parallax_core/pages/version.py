"""The version of the rules for counting pages."""

from __future__ import annotations

PAGES_VERSION = 1
"""Raised whenever the same edits and rows would leave a different number of free pages in any pool.

The head keeps a ledger of every stage's pages and compares it with the stage's report after every step. The two may run
different versions of Parallax and must count by the same rules.
"""
