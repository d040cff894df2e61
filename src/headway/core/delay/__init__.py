"""Delayed delivery as a state machine: delay lines, due times, changes, what a relay decides and stores."""
