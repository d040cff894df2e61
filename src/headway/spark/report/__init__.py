"""Makes HTML reports on a pipeline: its throughput, waiting times and lag by level."""
