"""The relay: it moves records along the delay lines and delivers those that are due."""
