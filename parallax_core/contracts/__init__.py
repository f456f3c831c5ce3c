"""The values and protocols that cross a border between core and a plugin; nothing but dataclasses and typing."""
