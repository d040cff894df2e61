"""Reports on a pipeline: throughput, waiting times and lag by level, as a page."""
