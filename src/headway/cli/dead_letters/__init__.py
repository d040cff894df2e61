"""Dead letters, as `headway dead` shows them and sends them again."""
