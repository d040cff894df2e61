"""Levels: their names, their shares of a capacity, and the policies that pick the next level."""
