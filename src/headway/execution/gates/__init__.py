"""The gates of a dispatch: optional features, each in a file of its own. `execution/gate.py` has their base class."""
