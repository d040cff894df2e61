"""A transactional outbox and its mirror: records and rows of a database, stored together. Needs `headway[outbox]`.

    from headway.contrib.outbox import Outbox

    outbox = Outbox(levels=3)
    outbox.create(engine)  # once, or as a migration
    with Session(engine) as session, session.begin():
        session.add(order)
        session.execute(outbox.insert("orders", b"...", key="customer 7", level=2))

`headway outbox run --name shop` sends each committed row as one record. In handlers, an `Inbox` notes which records
were handled, in the same transaction as their effects.
"""

from headway.contrib.outbox.inbox import Inbox
from headway.contrib.outbox.outbox import Outbox
from headway.contrib.outbox.outbox_relay import OutboxRelay

__all__ = ["Inbox", "Outbox", "OutboxRelay"]
