"""Helpers to write a backend: a stage made of arithmetic on single rows, leases, and checks of a plan. No contracts."""
