"""Selectors: conditions that choose records by key, header, age and so on."""
