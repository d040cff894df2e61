"""Commits of groups, as `headway offsets` copies and sets them."""
