"""Offsets: which offsets of a partition are complete, and the offset map in the metadata of a commit."""
