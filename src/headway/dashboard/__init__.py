"""The dashboard: a page that shows queues from Kafka alone, as `headway dashboard` or mounted in your own service."""

from headway import errors

try:
    from headway.dashboard.application import Dashboard, app
except ModuleNotFoundError as error:
    if error.name not in {"starlette", "jinja2", "anyio"}:
        raise
    raise errors.ConfigError(
        f"headway.dashboard needs {error.name}, which is not installed. Install it with: pip install "
        "'headway[dashboard]'"
    ) from error

__all__ = ["Dashboard", "app"]
