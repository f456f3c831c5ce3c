"""The plugin door: finds plugins by entry points, loads them one by one, and knows who offers what."""
