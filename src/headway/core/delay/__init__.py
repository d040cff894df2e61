"""Delayed delivery as a state machine: delay topics, due times, changed schedules, and a relay's decisions and state.

In this package, a delay topic is identified by its delay in milliseconds.
"""
