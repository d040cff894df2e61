"""What an operator does to queues, from the command line or the dashboard: sends dead letters again, settles them."""
