"""Declares handlers as workers with the decorator `worker`, and finds workers for the command `headway worker`."""
