"""Output of commands: tables, progress, texts that are safe to print."""
