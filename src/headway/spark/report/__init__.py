"""Reports of a pipeline: throughput, waits and lag by level, as a page."""
