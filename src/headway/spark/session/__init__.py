"""A local Spark session, and a filter of its stderr."""
