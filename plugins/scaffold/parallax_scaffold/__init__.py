"""Writes packages of new plugins."""
