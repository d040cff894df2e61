"""Requests and responses.

The `repr` of a request or response leaves out headers, bodies, queries and credentials, because these can be secret.
"""

import json as json_module
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any

from yarl import URL

from headway import errors
from headway.errors import FatalError


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """An HTTP request: a method, an absolute URL, headers, and either a body or a value that is sent as JSON.

    A str is sent in UTF-8. Raises `ConfigError` if both `body` and `json` are given, or if the value of a header is not
    a str.
    """

    method: str
    url: str
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    body: str | bytes | None = None

    def __post_init__(self) -> None:
        if self.body is not None and self.json is not None:
            raise errors.ConfigError("A request has both a body and json. Leave out one of them.")
        if not isinstance(self.body, str | bytes | None):
            raise errors.ConfigError(f"A request's body is a {type(self.body).__name__}; it must be bytes or a str.")
        for name, value in self.headers.items():
            if not isinstance(value, str):  # this is checked here, because aiohttp's error would show the value
                raise errors.ConfigError(f"The header {name} is a {type(value).__name__}; it must be a str.")

    @property
    def target(self) -> URL:
        """The URL. Raises `FatalError` unless it is an absolute http or https URL."""
        try:
            url = URL(self.url)
            if url.scheme in ("http", "https") and url.host:
                return url
        except ValueError:  # the error is not raised again, because its message can contain secrets
            pass
        raise FatalError(
            f"A {self.method} request has a URL that cannot be used. The URL must be absolute, such as "
            "https://host/path. It is not shown here, because it can contain secrets."
        )

    @property
    def content(self) -> tuple[bytes | None, str]:
        """The body to send, and its media type. Raises `TypeError` or `ValueError` if `json` cannot be sent as JSON."""
        if self.json is not None:
            return json_module.dumps(self.json).encode(), "application/json"
        if isinstance(self.body, str):
            return self.body.encode(), "text/plain; charset=utf-8"
        return self.body, "application/octet-stream"

    def __repr__(self) -> str:
        try:
            return f"{self.method} {self.target.origin()}{self.target.raw_path}"
        except FatalError:
            return f"{self.method} (invalid URL)"


@dataclass(frozen=True, slots=True, repr=False)
class Response:
    """A server's response. The names of headers are case-insensitive. `truncated` is True if the body was too long."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False

    def json(self) -> Any:
        """Decode the body as JSON. Raises `ValueError` if it is not JSON, and `FatalError` if it was truncated."""
        if self.truncated:
            raise FatalError(f"The body of the response was truncated after {len(self.body)} bytes. Raise max_body.")
        return json_module.loads(self.body)

    def __repr__(self) -> str:
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:  # the status is not standard
            return str(self.status)
