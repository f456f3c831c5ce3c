"""The model families that Parallax knows: one small module each."""
