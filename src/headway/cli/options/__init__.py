"""The options that commands share, and their values."""
