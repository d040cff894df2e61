"""Helpers for Python's own runtime: signals, wake-ups, timers, the switch interval and the garbage collector."""
