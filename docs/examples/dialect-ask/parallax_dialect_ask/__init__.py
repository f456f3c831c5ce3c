"""An API of one route, as an example of a dialect."""
