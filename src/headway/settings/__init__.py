"""Settings: Headway's own keys and their ranges, the settings that other clients inherit, and settings files."""
