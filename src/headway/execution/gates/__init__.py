"""The optional features of a dispatch, a file for each; `execution/gate.py` has the questions that they answer."""
