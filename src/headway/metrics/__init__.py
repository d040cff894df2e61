"""What is measured: the table of all metrics, the samples that clients return, and the exporters of samples."""
