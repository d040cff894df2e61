"""The accumulator of a producer: it keeps records from the time they are sent until their delivery is reported."""
