"""Settings: sections, the file, the environment, the origin of each value. Decides nothing by them."""
