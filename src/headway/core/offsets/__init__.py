"""Offsets: which offsets of a partition are complete, and the map of them in the metadata of a commit."""
