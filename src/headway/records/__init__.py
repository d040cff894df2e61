"""Records: their types and addresses, when they expire, and where they came from."""
