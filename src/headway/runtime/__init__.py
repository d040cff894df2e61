"""Tools for Python's own machinery: signals, wake-ups, timers, threads' switch interval, the garbage collector."""
