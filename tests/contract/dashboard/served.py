"""A dashboard in a server of its own, and the browser that looks at it."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from headway.dashboard import app

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str:
    """Find a Chromium, or skip the test."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip("There is no Chromium on this machine. On Debian: apt-get install --no-install-recommends chromium")


@contextmanager
def served(config: dict[str, Any], **options: Any) -> Iterator[str]:
    """Serve a dashboard on a free port. Yields its address."""
    with app(config, **options) as page:
        settings = uvicorn.Config(page, "127.0.0.1", 0, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            page.stop_streams()
            server.should_exit = True
            thread.join(20)


def until(is_so: Callable[[], Any], within: float = 60.0) -> Any:
    """Wait until a function returns something true, and return it."""
    deadline = time.monotonic() + within
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found
