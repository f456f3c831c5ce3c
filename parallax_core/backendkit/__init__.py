"""Helpers to write a backend: a stage made of arithmetic on single rows, and checks of a plan. No contracts."""
