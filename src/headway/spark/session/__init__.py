"""Creates and configures Spark sessions, and contains the helpers that need a session or its plans."""
