"""Records: their types and addresses, their time of expiry, and the header that holds their history."""
