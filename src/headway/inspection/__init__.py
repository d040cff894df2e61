"""The state of queues, dead-letter topics and schedulers, read from Kafka alone for people and programs that watch."""
