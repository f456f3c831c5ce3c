"""The layers of families for the backend ``torch``, which alone imports them, of its parts."""
