"""Dead letters: how `headway dead` shows them, sends them again and settles them."""
