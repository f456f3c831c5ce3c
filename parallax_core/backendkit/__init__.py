"""Helpers to write a backend: a stage of arithmetic on single rows, leases, checks of a plan."""
