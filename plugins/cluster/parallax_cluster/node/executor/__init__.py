"""Opens and closes a pipeline's stages, here or on other nodes. `cluster.placement` plans them."""
