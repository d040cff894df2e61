"""Delayed delivery as a state machine: delay lines, due times, changes, and a relay's decisions and stored state."""
