"""Delayed delivery: the `Scheduler` stores records, and the `Relay` delivers them when they are due."""
