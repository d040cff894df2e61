"""Schedules, as `headway schedule` makes and changes them."""
