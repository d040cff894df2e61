"""A worker's handler in processes of its own: how errors name it."""

import pickle

from headway.cli.workers.handling import HandlingElsewhere
from headway.cli.workers.messages import LogStyle
from headway.declarations import called


def test_a_handler_elsewhere_is_named_as_the_users_function_before_and_after_it_was_sent_there() -> None:
    elsewhere = HandlingElsewhere("billing:bill", "bill", 0, LogStyle("text", "INFO"))
    assert called(elsewhere) == "bill"
    sent = pickle.loads(pickle.dumps(elsewhere))  # noqa: S301 - our own
    assert sent == elsewhere
    assert hash(sent) == hash(elsewhere)
    assert called(sent) == "bill"
