"""Who may see the dashboard, and which requests may change something.

Invariants:
- A request whose `Host` header is not in the list is refused before anything else, so a foreign name that resolves to
  this machine (DNS rebinding) reaches nothing.
- A request that changes something needs three things at once: actions are allowed, the browser says that the request
  comes from this page (`Origin` or `Sec-Fetch-Site`), and the form has the CSRF token of the visitor's own session.
- Secrets are compared in constant time, and are in no repr.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headway.declarations import shown
from headway.errors import ConfigError

Scope = MutableMapping[str, Any]
GetUser = Callable[[Scope], str | None]
"""Returns the name of the user who sent a request, or None to refuse the request. The argument is its ASGI scope."""

LEAST_OF_A_TOKEN = 16
_SESSION_SECONDS = 12 * 3600
_LONGEST_NAME = 60
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Visitor(NamedTuple):
    """The session of a browser. `name` is the name that was given at the login, or ""."""

    session: str
    name: str


@dataclass(frozen=True)
class Access:
    """The rules by which requests are admitted.

    Args:
        hosts: The names by which the dashboard can be reached, without ports.
        token: The token for the login page, or None.
        get_user: Returns the user of a request, if the service in which the dashboard is mounted has its own login.
        allow_actions: Whether anything can be changed.
        secret: Signs sessions. All processes of a service need the same one. By default it is random, or made from the
            token.
    """

    hosts: Collection[str] = LOOPBACK
    token: str | None = field(default=None, repr=False)
    get_user: GetUser | None = field(default=None, repr=False)
    allow_actions: bool = False
    secret: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.hosts, str) or not self.hosts or not all(isinstance(each, str) for each in self.hosts):
            raise ConfigError(f"hosts is {shown(self.hosts)}, but must be a list of host names, such as ['localhost'].")
        if self.token is not None and len(self.token) < LEAST_OF_A_TOKEN:
            raise ConfigError(
                f"The dashboard's token has {len(self.token)} characters, but needs at least {LEAST_OF_A_TOKEN}. Make "
                "one with: openssl rand -hex 32"
            )
        open_to = sorted(each for each in self.hosts if not is_loopback(each))
        if open_to and self.token is None and self.get_user is None:
            raise ConfigError(
                f"Everybody who reaches the dashboard as {open_to[0]} could see it. Give it a token, or if it is "
                "mounted in a service with its own login, pass user=, a function that returns the user of a request."
            )
        names = frozenset(each.strip("[]").rstrip(".").lower() for each in self.hosts)
        object.__setattr__(self, "hosts", names)
        source = self.secret or self.token or secrets.token_hex(32)
        object.__setattr__(self, "_key", hashlib.sha256(b"headway dashboard\0" + source.encode()).digest())

    def is_host(self, header: str) -> bool:
        """Return whether a `Host` header names this dashboard. The port does not matter."""
        try:
            name = urlsplit(f"//{header}").hostname
        except ValueError:
            return False
        return name is not None and "@" not in header and name.rstrip(".").lower() in self.hosts

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token."""
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def new_cookie(self, name: str = "", now: float | None = None) -> str:
        """Return the cookie of a new session, in which the visitor has this name."""
        until = int((time.time() if now is None else now) + _SESSION_SECONDS)
        plain = f"{secrets.token_hex(16)}.{until}.{name[:_LONGEST_NAME].encode(errors='replace').hex()}"
        return f"{plain}.{self._sign('session', plain)}"

    def visitor(self, cookie: str, now: float | None = None) -> Visitor | None:
        """Return the session that a cookie belongs to, or None if the cookie is not valid or has expired."""
        plain, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign("session", plain).encode(), signature.encode(errors="replace")):
            return None
        session, until, name = plain.split(".")  # it is signed, so it has the form of `new_cookie`
        if int(until) < (time.time() if now is None else now):
            return None
        return Visitor(session, bytes.fromhex(name).decode())

    def csrf(self, visitor: Visitor) -> str:
        """Return the token that the forms of a session carry."""
        return self._sign("form", visitor.session)

    def is_csrf(self, visitor: Visitor, text: str) -> bool:
        """Return whether a form carries the token of its session."""
        return hmac.compare_digest(self.csrf(visitor).encode(), text.encode(errors="replace"))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(errors="replace"), hashlib.sha256).hexdigest()  # type: ignore[attr-defined]


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request was sent by a page of this dashboard, as the browser says in its headers.

    `Origin` is compared with the request's own `Host`, without the scheme, because a proxy may end TLS.
    """
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") == "same-origin"
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached only from this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    name = host.strip("[]").rstrip(".").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
