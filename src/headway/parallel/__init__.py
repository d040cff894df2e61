"""The parallel consumer. It fetches records, and runs handlers for many of them at the same time."""
