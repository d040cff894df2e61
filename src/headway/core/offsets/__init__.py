"""Offsets: the complete ones, and the map of them that a commit's metadata carries."""
