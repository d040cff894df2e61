"""The pure core: state machines and arithmetic.

Nothing here imports a Kafka client, Spark, threads, an event loop, a clock, randomness or logging: time is an
argument and effects are return values.
"""
