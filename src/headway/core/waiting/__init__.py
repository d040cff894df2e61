"""Edits of records that wait: what operators ask for, and what the owner of a partition decides."""
