"""`format("headway")` for reading: micro-batches and batches by priority."""
