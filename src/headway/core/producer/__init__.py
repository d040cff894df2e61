"""The accumulator of a producer, which keeps records from the time they are sent until their delivery is reported."""
