"""Commands that show, check and manage an installation."""
