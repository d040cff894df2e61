"""The options that commands share, and the types of their values."""
