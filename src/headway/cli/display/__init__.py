"""The output of the commands: tables, progress, JSON, and text that is safe to print."""
