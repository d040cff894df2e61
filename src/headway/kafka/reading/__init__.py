"""Reads Kafka's partitions by offset, without joining a group."""
