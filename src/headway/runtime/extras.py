"""Names the command that installs the packages of an extra, such as `headway[spark]`.

`pip install 'headway[spark]'` works only if Headway was installed from the package index. A command that names the
packages always works.
"""

from importlib.metadata import PackageNotFoundError, requires


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, according to Headway's own package metadata.

    >>> how_to_install("http")  # doctest: +SKIP
    "pip install 'aiohttp<4,>=3.14'"
    """
    try:
        listed = requires("headway") or []
    except PackageNotFoundError:  # raised if Headway's source is on the path but Headway is not installed
        listed = []
    marked = (requirement.partition(";") for requirement in listed)
    packages = [f"'{package.strip()}'" for package, _, marker in marked if marker.strip() == f"extra == '{extra}'"]
    return f"pip install {' '.join(packages) or f'headway[{extra}]'}"
