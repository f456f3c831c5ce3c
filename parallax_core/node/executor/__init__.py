"""Opens and closes the stages of a pipeline, here or on other nodes. `cluster.placement` chooses their layers."""
