"""The parallel consumer, which fetches records and runs handlers for many records at the same time."""
