"""The bank that the shop asks for payments: a stand-in, which is at first out of order for every third payment.

python shop_bank.py 8090
"""

import sys
from collections import Counter

from aiohttp import web

PAID = web.AppKey("paid", set[str])
ASKED = web.AppKey("asked", Counter[str])


async def post_payment(request: web.Request) -> web.Response:
    """Take a payment once per Idempotency-Key. Status 409 means that it was taken before."""
    app, payment = request.app, request.headers["Idempotency-Key"]
    app[ASKED][payment] += 1
    if len(app[ASKED]) % 3 == 0 and app[ASKED][payment] == 1:
        raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"})
    if payment in app[PAID]:
        raise web.HTTPConflict
    app[PAID].add(payment)
    return web.json_response({"paid": payment})


def application() -> web.Application:
    """Return the application."""
    app = web.Application()
    app[PAID], app[ASKED] = set(), Counter()
    app.add_routes([web.post("/payments", post_payment)])
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
