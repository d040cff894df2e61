"""The output of commands: tables, progress, and text that is safe to print."""
