"""Helpers for tests of programs that use Headway."""
