"""The engine of parallel processing: receives records and outcomes, and returns attempts to run and commits to make."""
