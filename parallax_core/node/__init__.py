"""Runs pipelines, their stages and the links between them. Pure decisions are in `engine` and `cluster`."""
