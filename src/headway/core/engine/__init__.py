"""The engine of parallel processing: records in, works out, outcomes in, commits out."""
