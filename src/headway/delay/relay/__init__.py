"""The relay: moves records along the delay lines and delivers what is due."""
