"""Runs handlers on threads, on an event loop or in processes. Each call gets a context and has a time limit."""
