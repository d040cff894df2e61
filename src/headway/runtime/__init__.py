"""What Python itself needs: signals, wake-ups, timers, threads' switch interval, the garbage collector."""
