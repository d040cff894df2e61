"""Settings: Headway's own keys and their bounds, what other clients inherit, and files of settings."""
