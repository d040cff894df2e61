"""Delayed delivery as a state machine: delay topics, due times, changes, and a relay's decisions and stored state."""
