"""Offsets: which are complete, and the map of them that a commit's metadata carries."""
