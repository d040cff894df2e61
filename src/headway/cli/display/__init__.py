"""What commands show: tables, progress, texts that are safe to print."""
