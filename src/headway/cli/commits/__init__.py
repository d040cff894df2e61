"""Changes of groups' commits, for `headway offsets copy` and `headway offsets reset`."""
