"""The HTTP server: routes, limits, authentication, streaming. It knows an `Engine` and no pipeline."""
