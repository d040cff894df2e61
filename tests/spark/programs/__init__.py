"""Programs that tests run on a cluster, and kill."""
