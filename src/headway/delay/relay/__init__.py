"""The relay: it moves records along the delay topics and delivers those that are due."""
