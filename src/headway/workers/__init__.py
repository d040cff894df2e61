"""Workers: handlers declared with their options, and how `headway worker` finds them."""
