"""The whole shop with one command: Kafka, bank, API, workers and relay, until Ctrl-C.

python run_shop.py             # then: curl -d '{"customer": "ann", "cents": 995}' http://127.0.0.1:8080/orders
python run_shop.py --orders 5  # places five orders, waits until their customers are reminded, and ends

It needs the extras `broker` and `http`. The reminder comes after ten seconds here, not after three days.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp

from headway.broker import LocalBroker

FOLDER = Path(__file__).parent
HEADWAY = ["-m", "headway"]


async def run(orders: int, servers: str, directory: str) -> None:
    """Run the shop's processes for as long as they are needed."""
    api, bank = (free_port(), free_port()) if orders else (8080, 8090)
    environment = os.environ | {
        "HEADWAY_BOOTSTRAP_SERVERS": servers,
        "SHOP_BANK": f"http://127.0.0.1:{bank}",
        "SHOP_DATABASE": str(Path(directory, "shop.db")),
        "SHOP_REMIND_AFTER": os.environ.get("SHOP_REMIND_AFTER", "10"),
    }
    url = f"http://127.0.0.1:{api}/orders"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start(*words: str) -> None:
            process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=FOLDER, env=environment)
            stack.push_async_callback(stop, process)

        await start("shop_bank.py", str(bank))
        await start("shop_api.py", str(api))  # this creates the topics
        await until_up(session, url)
        await start(*HEADWAY, "worker", "shop_workers", "--log-level", "warning")
        await start(*HEADWAY, "relay", "--name", os.environ.get("SHOP", "shop"), "--log-level", "warning")
        print(f"The shop is open at {url}", flush=True)
        if orders:
            await place(session, url, orders)
        else:
            await asyncio.Event().wait()


async def place(session: aiohttp.ClientSession, url: str, count: int) -> None:
    """Place orders and show their states until all customers are reminded."""
    states: dict[str, str] = {}
    for number in range(count):
        order = {"customer": f"customer {number % 3}", "cents": 995, "express": number % 2 == 1}
        async with session.post(url, json=order) as answer:
            states[(await answer.json())["id"]] = ""
    while set(states.values()) != {"reminded"}:
        for order_id, before in states.items():
            async with session.get(f"{url}/{order_id}") as answer:
                states[order_id] = (await answer.json())["state"]
            if states[order_id] != before:
                print(f"{order_id} is {states[order_id]}", flush=True)
        await asyncio.sleep(0.2)


async def until_up(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until the API answers."""
    while True:
        with suppress(aiohttp.ClientConnectionError):
            async with session.get(f"{url}/none") as answer:
                if answer.ok:
                    return
        await asyncio.sleep(0.1)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


async def stop(process: asyncio.subprocess.Process) -> None:
    """End a process and wait for its end."""
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


def main() -> None:
    """Run the shop on the Kafka that HEADWAY_BOOTSTRAP_SERVERS names, or on one of its own."""
    parser = argparse.ArgumentParser(description="Run the whole shop.")
    parser.add_argument("--orders", type=int, default=0, help="Place this many orders, and end when all are done.")
    orders = parser.parse_args().orders
    given = os.environ.get("HEADWAY_BOOTSTRAP_SERVERS")
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as directory:
        if given:
            asyncio.run(run(orders, given, directory))
        else:
            with LocalBroker() as broker:
                asyncio.run(run(orders, broker.bootstrap_servers, directory))


if __name__ == "__main__":
    main()
