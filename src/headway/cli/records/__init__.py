"""Lines of input as records, and records as lines of output."""
