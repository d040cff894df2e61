"""Members of consumer groups, the offsets at which they begin, and their commits."""
