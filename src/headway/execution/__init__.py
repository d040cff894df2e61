"""Runs handlers on threads, on an event loop or in processes.

Each handler call gets a context and can have a time limit.
"""
