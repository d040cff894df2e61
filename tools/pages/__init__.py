"""Builds the site of the documentation."""
