"""Handlers that send an HTTP request for each record or batch, as in `consumer.run(HttpHandler(to_request))`."""

from headway import errors

try:
    from headway.http.handler import BatchHttpHandler, HttpHandler
    from headway.http.request_response import Request, Response
except ModuleNotFoundError as error:
    if error.name != "aiohttp":
        raise
    raise errors.ConfigError(
        "headway.http needs aiohttp, which is not installed. Install it with: pip install aiohttp"
    ) from error

__all__ = ["BatchHttpHandler", "HttpHandler", "Request", "Response"]
