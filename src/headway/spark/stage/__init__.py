"""Implements `parallel_map`, which calls a handler for each row, in parallel and in order by key."""
