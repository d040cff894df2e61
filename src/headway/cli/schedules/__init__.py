"""Schedules: how `headway schedule` adds, cancels and reschedules them."""
