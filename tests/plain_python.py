"""Tests that can run only in plain Python, because they replace a part of a module that can be compiled."""

import pytest

from headway.runtime.compiled import is_compiled

plain_python = pytest.mark.skipif(
    is_compiled(), reason="it replaces a part of a compiled module; `HEADWAY_COMPILE=0 make test` runs it"
)
