"""A local Spark session, and a filter for its stderr."""
