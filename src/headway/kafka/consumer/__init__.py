"""Members of consumer groups, and commits."""
