"""Finds plugins by entry points, loads them one by one and calls their hooks. Offers nothing itself."""
