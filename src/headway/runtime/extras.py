"""How to install the packages that an extra of Headway needs.

`pip install 'headway[spark]'` only works if Headway came from the package index. Naming the packages always works.
"""

from importlib.metadata import PackageNotFoundError, requires


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, as Headway's own metadata lists them.

    >>> how_to_install("http")  # doctest: +SKIP
    "pip install 'aiohttp<4,>=3.14'"
    """
    try:
        listed = requires("headway") or []
    except PackageNotFoundError:  # the source is on the path but not installed
        listed = []
    marked = (requirement.partition(";") for requirement in listed)
    packages = [f"'{package.strip()}'" for package, _, marker in marked if marker.strip() == f"extra == '{extra}'"]
    return f"pip install {' '.join(packages) or f'headway[{extra}]'}"
