"""The gates of a dispatch: optional features, each in its own module. Their base class is in `execution/gate.py`."""
