"""Probes: HTTP endpoints that say whether a process works, and systemd's notifications."""

from headway.probes.serving import Probes, serve_probes

__all__ = ["Probes", "serve_probes"]
