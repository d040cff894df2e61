"""Implements writing with `format("headway")`, which delivers rows to Kafka at least once or exactly once."""
