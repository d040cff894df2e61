"""The shop's HTTP API: it writes orders to Kafka, and shows their state.

HEADWAY_CONFIG_FILE=client.properties python shop_api.py 8080
"""

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from aiohttp import web
from shop_workers import PATIENCE, SHOP, Order, open_database

from headway import AsyncProducer, create_topic, settings_from_environment
from headway.errors import DeliveryError

LEVELS = 2  # 1 for express
PRODUCER = web.AppKey("producer", AsyncProducer)


async def producer(app: web.Application) -> AsyncIterator[None]:
    """Keep one producer while the application runs, as FastAPI's `lifespan` does."""
    settings = settings_from_environment()
    for topic, levels in ((f"{SHOP}-orders", LEVELS), (f"{SHOP}-reminders", None), (f"{SHOP}-dead", None)):
        create_topic(settings, topic, levels=levels, partitions=4, exist_ok=True)
    async with AsyncProducer({**settings, **PATIENCE, "levels": LEVELS}) as app[PRODUCER]:
        yield


async def post_order(request: web.Request) -> web.Response:
    """Take an order. When the customer gets the answer, the order is in Kafka, on all replicas."""
    try:
        given: dict[str, Any] = await request.json()
        order = Order(
            str(given.get("id") or uuid4()), str(given["customer"]), int(given["cents"]), bool(given.get("express"))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise web.HTTPBadRequest(text='An order is {"customer": "c1", "cents": 995, "express": false}.') from None
    try:
        await request.app[PRODUCER].send(
            f"{SHOP}-orders", json.dumps(asdict(order)), key=order.customer, level=int(order.express)
        )
    except DeliveryError:  # the customer can send it again: with the same id it stays one order
        raise web.HTTPServiceUnavailable(text=f"Try again, with the id {order.id}.") from None
    return web.json_response({"id": order.id}, status=202)


async def get_order(request: web.Request) -> web.Response:
    """Return the state of an order."""
    database = open_database()
    found = database.execute("select state from orders where id = ?", (request.match_info["id"],)).fetchone()
    database.close()
    return web.json_response({"state": found[0] if found else "on its way"})


def application() -> web.Application:
    """Return the application."""
    app = web.Application()
    app.cleanup_ctx.append(producer)
    app.add_routes([web.post("/orders", post_order), web.get("/orders/{id}", get_order)])
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
