"""Settings: sections, the file, the environment, and where each value comes from. Makes no decision from them."""
