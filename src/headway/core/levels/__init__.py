"""Levels: the names of level topics, the levels' shares of a capacity, and the policies that pick the next level."""
