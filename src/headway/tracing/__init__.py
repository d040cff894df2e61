"""Traces records through producers, delay topics, handlers and commits, with OpenTelemetry."""

from headway.tracing.tracing import Tracing

__all__ = ["Tracing"]
