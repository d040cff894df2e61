"""Tells whether the hot path runs as compiled modules or in plain Python. `hatch_build.py` compiles them."""

from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

_A_COMPILED_MODULE = "headway.core.engine.engine"


def is_compiled() -> bool:
    """Return whether the modules of the hot path are compiled."""
    spec = find_spec(_A_COMPILED_MODULE)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def outdated_modules() -> Sequence[Path]:
    """Return the sources that were changed after they were compiled, so that Python runs the old code."""
    compiled = [path for suffix in EXTENSION_SUFFIXES for path in Path(__file__).parents[1].rglob(f"*{suffix}")]
    sources = [
        (path, path.with_name(path.name.partition(".")[0] + suffix)) for path in compiled for suffix in (".py", ".c")
    ]
    return sorted(
        {source for path, source in sources if source.exists() and source.stat().st_mtime > path.stat().st_mtime}
    )
