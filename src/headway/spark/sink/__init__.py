"""`format("headway")` for writing: rows to Kafka, at least once or exactly once."""
