"""Who reaches the dashboard, and which requests may change something."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from headway.dashboard import app
from headway.dashboard.access import Access
from headway.dashboard.application import Dashboard, watching
from headway.errors import ConfigError
from tests.unit.dashboard.scene import Shown, scene

CONFIG = {"bootstrap.servers": "localhost:1"}
TOKEN = "a token that is long enough"  # noqa: S105
ACTIONS = ["/dead/send-again", "/schedules/cancel", "/action/answer"]


def dashboard(**rules: Any) -> Dashboard:
    return watching(CONFIG, Access(**rules), Shown(scene()))


def client(page: Any, host: str = "localhost:8080") -> TestClient:
    return TestClient(page, base_url=f"http://{host}", follow_redirects=False)


@pytest.fixture
def open_() -> Iterator[TestClient]:
    """A dashboard that allows actions, without a login."""
    with dashboard(allow_actions=True) as page:
        yield client(page)


def csrf(browser: TestClient) -> str:
    """Return the token of a form. The first snapshot may still be on its way to the page."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if found := re.search(r'name="csrf" value="(\w+)"', browser.get("/dead").text):
            return found[1]
    raise AssertionError("the page has no form")


OWN = {"Origin": "http://localhost:8080"}


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:80", "[::1]:80", "LOCALHOST."])
def test_loopback_names_are_admitted(open_: TestClient, host: str) -> None:
    assert open_.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:80", "", "a@localhost", "localhost@b", "[", "10.0.0.1"],
)
def test_a_forged_host_reaches_nothing(open_: TestClient, host: str) -> None:
    for path in ("/", "/assets/dashboard.css", "/login", "/events"):
        refused = open_.get(path, headers={"Host": host})
        assert refused.status_code == 421
        assert "orders" not in refused.text


@pytest.mark.parametrize("path", ACTIONS)
def test_a_read_only_dashboard_refuses_every_action(path: str) -> None:
    with dashboard() as page:
        browser = client(page)
        refused = browser.post(path, data={"csrf": "x"}, headers=OWN)
    assert refused.status_code == 403
    assert "read-only" in refused.text


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Origin": "http://localhost:8080.evil.example"},
        {"Origin": "["},
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_an_action_from_another_origin_is_refused(open_: TestClient, path: str, headers: dict[str, str]) -> None:
    refused = open_.post(path, data={"csrf": csrf(open_)}, headers=headers)
    assert refused.status_code == 403
    assert "does not come from a page" in refused.text


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_without_the_token_of_its_session_is_refused_and_logged(
    open_: TestClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = dashboard(allow_actions=True)
    with stranger:
        foreign = csrf(client(stranger))
    for data in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": foreign}):
        assert open_.post(path, data=data, headers=OWN).status_code == 403
    assert f"An action was refused: POST '{path}'" in caplog.text


def test_the_token_of_a_form_belongs_to_one_session(open_: TestClient) -> None:
    token = csrf(open_)
    open_.cookies.clear()
    assert open_.post("/action/answer", data={"csrf": token, "id": "x"}, headers=OWN).status_code == 403


def test_a_form_from_a_page_of_its_session_is_admitted(open_: TestClient) -> None:
    answer = open_.post("/action/answer", data={"csrf": csrf(open_), "id": "none"}, headers=OWN)
    assert answer.status_code == 404
    assert "There is no such action" in answer.text


def test_a_form_without_limits_is_refused(open_: TestClient) -> None:
    large = {"csrf": csrf(open_), "place": ["0:1"] * 200_000}
    assert open_.post("/dead/send-again", data=large, headers=OWN).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(open_: TestClient, method: str) -> None:
    assert open_.request(method, "/").status_code == 405


def test_every_answer_keeps_foreign_content_out(open_: TestClient) -> None:
    for path in ("/", "/dead", "/nothing-there", "/assets/dashboard.js", "/action?id=x"):
        headers = open_.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in policy
    assert open_.get("/").headers["cache-control"] == "no-store"
    assert "immutable" in open_.get("/assets/dashboard.js").headers["cache-control"]


def test_the_cookie_is_for_no_script() -> None:
    with dashboard() as page:
        cookie = client(page).get("/").headers["set-cookie"]
        secure = TestClient(page, base_url="https://localhost").get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert "Secure" in secure


# The login


@pytest.fixture
def locked() -> Iterator[TestClient]:
    """A dashboard that is reached from elsewhere, with a token."""
    with dashboard(hosts=["queues.example.org"], token=TOKEN) as page:
        yield client(page, "queues.example.org")


def test_without_the_token_nothing_is_shown(locked: TestClient) -> None:
    for path in ("/", "/dead", "/curves.json", "/events", "/partition"):
        assert locked.get(path).status_code == 401
    assert locked.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login"
    assert locked.get("/login").status_code == 200


def test_the_token_opens_a_session_with_the_name_of_the_user(locked: TestClient) -> None:
    own = {"Origin": "http://queues.example.org"}
    wrong = locked.post("/login", data={"token": "a token that is long enougH", "name": "ann"}, headers=own)
    assert wrong.status_code == 403
    assert locked.post("/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"}).status_code == 403
    right = locked.post("/login", data={"token": TOKEN, "name": "ann"}, headers=own)
    assert right.status_code == 303
    assert TOKEN not in right.headers["set-cookie"]
    assert "You are ann." in locked.get("/").text
    locked.post("/logout", headers=own)
    assert locked.get("/").status_code == 401


def test_a_program_can_send_the_token_in_a_header(locked: TestClient) -> None:
    assert locked.get("/curves.json", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert locked.get("/curves.json", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_session_ends_and_cannot_be_forged() -> None:
    access, other = Access(token=TOKEN, hosts=["a"]), Access(token=TOKEN + "!", hosts=["a"])
    cookie = access.new_cookie("ann", now=1000.0)
    visitor = access.visitor(cookie, now=2000.0)
    assert visitor
    assert visitor.name == "ann"
    assert access.visitor(cookie, now=1000.0 + 13 * 3600) is None
    assert other.visitor(cookie, now=2000.0) is None
    for forged in (cookie[:-1], cookie.replace(".", "", 1), "", "...", "a.b.c.d", cookie + "0"):
        assert access.visitor(forged, now=2000.0) is None


def test_the_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(Access(token=TOKEN))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hosts": ["queues.example.org"]}, "Everybody who reaches the dashboard as queues.example.org could see it"),
        ({"hosts": ["10.0.0.1"]}, "Everybody"),
        ({"token": "short"}, "needs at least 16"),
        ({"hosts": "localhost"}, "must be a list"),
        ({"hosts": []}, "must be a list"),
    ],
)
def test_what_would_be_open_to_all_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        app(CONFIG, **arguments)


# In another service


def test_it_can_be_mounted_behind_the_login_of_another_service() -> None:
    def user(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    with dashboard(hosts=["shop.example.org"], get_user=user, allow_actions=True) as page:
        browser = client(Starlette(routes=[Mount("/queues", page)]), "shop.example.org")
        refused = browser.get("/queues/")
        assert refused.status_code == 401
        assert "Path=/queues" in refused.headers["set-cookie"]
        browser.headers["x-user"] = "ann"
        shown = browser.get("/queues/")
        assert shown.status_code == 200
        assert 'href="/queues/dead"' in shown.text
        assert 'data-events="/queues/events"' in shown.text
        assert 'hx-get="/queues/"' in shown.text
        assert browser.get("/queues/assets/dashboard.css").status_code == 200
