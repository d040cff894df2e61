"""The accumulator of a producer: records between their sending and their delivery reports."""
