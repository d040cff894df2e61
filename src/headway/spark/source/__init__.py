"""Implements reading with `format("headway")`, as micro-batches and as batches."""
