"""Fetching jars, against a Maven repository on the loopback interface that misbehaves on request."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headway.broker import jars
from headway.broker.lock import Jar, locked_jars, parse_line
from headway.errors import LocalBrokerError

CONTENT = b"a jar's bytes " * 1000
JAR = Jar("org.example", "thing", "1.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Repository(ThreadingHTTPServer):
    """Serves the one jar; the answers in `bad` come first: bytes sent under the whole jar's length."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bad: list[bytes] = []
        self.served = 0


class _Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        if not self.path.endswith(f"/{JAR.path.as_posix()}"):
            self.send_error(404)
            return
        self.server.served += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(self.server.bad.pop(0) if self.server.bad else CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A Maven repository that jgo's own configuration names, an empty cache, and a lock of one jar."""
    with Repository() as server:
        (tmp_path / "jgo.conf").write_text(f"[repositories]\ncentral = http://127.0.0.1:{server.server_port}\n")
        monkeypatch.setenv("JGO_CONFIG_FILE", str(tmp_path / "jgo.conf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(jars, "locked_jars", lambda: (JAR,))
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_jar_is_fetched_once(repository: Repository) -> None:
    assert [path.read_bytes() for path in jars.ensure_jars()] == [CONTENT]
    jars.ensure_jars()
    assert repository.served == 1


def test_a_download_that_breaks_off_starts_over(repository: Repository) -> None:
    repository.bad = [CONTENT[:100]]
    assert jars.ensure_jars()[0].read_bytes() == CONTENT
    assert repository.served == 2


def test_a_jar_with_another_checksum_is_fetched_again(repository: Repository) -> None:
    repository.bad = [CONTENT[::-1]]
    assert jars.ensure_jars()[0].read_bytes() == CONTENT
    assert repository.served == 2


def test_a_jar_that_stays_damaged_is_one_sentence(repository: Repository) -> None:
    repository.bad = [CONTENT[::-1]] * 3
    with pytest.raises(LocalBrokerError, match=r"thing-1\.0\.jar .* SHA-256 differs"):
        jars.ensure_jars()


def test_a_truncated_jar_in_the_cache_is_fetched_again(repository: Repository) -> None:
    [path] = jars.ensure_jars()
    path.write_bytes(CONTENT[:50])
    assert jars.ensure_jars()[0].read_bytes() == CONTENT


def test_what_an_interrupted_installation_left_is_checked_before_it_is_used(repository: Repository) -> None:
    path = jars.cache_dir() / "maven" / JAR.path
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[::-1])  # the right size, but never verified
    assert jars.ensure_jars()[0].read_bytes() == CONTENT


def test_good_jars_of_an_interrupted_installation_are_kept(repository: Repository) -> None:
    path = jars.cache_dir() / "maven" / JAR.path
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    jars.ensure_jars()
    assert repository.served == 0


def test_without_a_network_one_sentence_says_what_to_do(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jgo.conf").write_text("[repositories]\ncentral = http://127.0.0.1:1\n")
    with pytest.raises(LocalBrokerError, match=r"could not be downloaded \(.*refused\)\. Check the network"):
        jars.ensure_jars()


def test_the_lock_names_each_jar_once_and_survives_a_round_trip() -> None:
    assert len({(jar.group, jar.artifact) for jar in locked_jars()}) == len(locked_jars()) > 40
    assert all(parse_line(str(jar)) == jar for jar in locked_jars())
