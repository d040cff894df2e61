"""Connects Headway with other libraries. Each package needs an extra, and nothing else in Headway imports it."""
