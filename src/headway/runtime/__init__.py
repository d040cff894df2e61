"""Helpers around Python's runtime: signals, wake-ups, timers, the switch interval and the garbage collector."""
