"""Records: their types and addresses, their expiry times, and the header that holds their history."""
