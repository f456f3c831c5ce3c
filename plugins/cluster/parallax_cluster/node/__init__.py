"""Runs pipelines, their stages and links. Pure decisions are in `engine` and `cluster`."""
