"""The routes and request fields of GradientHQ's Parallax, by the hook ``parallax_extend_server``."""
