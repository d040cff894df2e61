"""Delayed delivery: the `Scheduler`, and the relay that delivers records when they are due."""
