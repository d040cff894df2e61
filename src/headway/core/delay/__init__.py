"""Delayed delivery as a state machine: delay topics, due times, changes, and the decisions and stored state of a relay.

In this package, a delay topic is identified by its delay in milliseconds.
"""
