"""Helpers to write a backend: a stage of single rows, leases, checks of a plan. No contracts."""
