"""Dead letters: how `headway dead` shows them."""
