"""The shop of examples/shop: its API, its workers and a relay as processes, and a bank that fails at first."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headway.broker import LocalBroker
from headway.broker.ports import free_ports
from tests.broker.delay_cluster import wait_until
from tests.contract.http.test_http import Answer, Seen, Server, serve

__all__ = ["serve"]

pytestmark = pytest.mark.kafka

SHOP = Path(__file__).parents[3] / "examples" / "shop"
HEADWAY = [sys.executable, "-c", "from headway.cli import main; main()"]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(headway_broker: LocalBroker, headway_topic: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def run(*command: str, **environment: str) -> "subprocess.Popen[bytes]":
            env = os.environ | {
                "HEADWAY_BOOTSTRAP_SERVERS": headway_broker.bootstrap_servers,
                "SHOP": f"shop-{headway_topic[-8:]}",
                "SHOP_DATABASE": str(tmp_path / "shop.db"),
                "SHOP_REMIND_AFTER": "1",
                **environment,
            }
            process = subprocess.Popen(command, cwd=SHOP, env=env)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def call(url: str, order: Any = None) -> Any:
    body = None if order is None else json.dumps(order).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return json.load(answer)


def is_up(url: str) -> bool:
    try:
        return bool(call(f"{url}/orders/none"))
    except urllib.error.URLError:
        return False


@pytest.mark.slow
def test_each_order_is_paid_once_and_its_customer_reminded(
    headway_topic: str, start: Start, serve: Callable[..., Server]
) -> None:
    def bank(seen: Seen) -> Answer:
        """Fail at the first request for each payment, after having taken it; refuse one customer for good."""
        payment = json.loads(seen.body)
        if payment["customer"] == "nobody":
            return Answer(422)
        first = [each.key for each in server.seen].count(seen.key) == 1
        return Answer(503, {"Retry-After": "0"}) if first else Answer(409)

    server, [port], shop = serve(bank), free_ports(1), f"shop-{headway_topic[-8:]}"
    url = f"http://127.0.0.1:{port}"

    def states() -> set[str]:
        return {call(f"{url}/orders/{each}")["state"] for each in ids}

    start(sys.executable, "shop_api.py", str(port))
    wait_until(lambda: is_up(url))
    workers = start(*HEADWAY, "worker", "shop_workers", SHOP_BANK=server.url)
    ids = [
        call(f"{url}/orders", {"customer": f"c{i % 3}", "cents": i + 1, "express": i % 2 == 0})["id"] for i in range(9)
    ]
    call(f"{url}/orders", {"id": ids[0], "customer": "c0", "cents": 1})  # the button was pressed twice
    refused = call(f"{url}/orders", {"customer": "nobody", "cents": 1})["id"]
    wait_until(lambda: states() == {"paid"})
    start(*HEADWAY, "relay", "--name", shop)
    wait_until(lambda: states() == {"reminded"})
    assert call(f"{url}/orders/{refused}")["state"] == "new"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        call(f"{url}/orders", {"customer": "c1"})
    keys = Counter(seen.key for seen in server.seen)
    assert keys.keys() == {*ids, refused}
    assert keys[refused] == 1
    workers.send_signal(signal.SIGTERM)
    assert workers.wait(30) == 0


@pytest.mark.slow
def test_one_command_runs_the_whole_shop(start: Start) -> None:
    shop = start(sys.executable, "run_shop.py", "--orders", "4")
    assert shop.wait(120) == 0
