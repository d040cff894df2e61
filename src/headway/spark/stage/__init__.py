"""`parallel_map`: a handler for each row, in parallel and in order by key."""
