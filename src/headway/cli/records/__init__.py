"""Converts lines of input into records, and records into lines of output."""
