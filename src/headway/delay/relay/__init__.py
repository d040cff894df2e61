"""The relay, which moves records between delay topics and delivers them when they are due."""
