"""The commands of clusters."""
