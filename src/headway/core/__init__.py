"""The pure core: state machines and arithmetic.

No module in this package imports a Kafka client, Spark, threads, an event loop, a clock, randomness or logging. Time is
an argument, and effects are return values.
"""
