"""The accumulator of the producer: records that were sent and not yet reported on."""
