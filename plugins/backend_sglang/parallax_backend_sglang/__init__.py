"""The SGLang backend of Parallax."""
