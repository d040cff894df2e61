"""A local Spark session, and what it says on stderr."""
