"""Model families Parallax knows: one small module each."""
