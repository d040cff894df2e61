"""Settings: the keys that Headway adds to Kafka's, the settings that other clients inherit, and settings files."""
