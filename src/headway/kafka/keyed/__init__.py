"""Compacted topics in which programs keep values by key, such as rules and marks."""
