"""What `headway top` shows: its views, its keys, and its screen."""
