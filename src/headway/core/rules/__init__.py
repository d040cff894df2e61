"""Rules, with which operators steer the handlers of a running group."""
