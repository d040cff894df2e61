"""Delayed delivery: `Scheduler` and the relay that moves what is due."""
