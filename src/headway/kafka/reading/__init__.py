"""Reading by offset, without joining a group."""
