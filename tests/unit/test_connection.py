"""Which settings reach the clients that are made beside another, and that nothing shows them."""

import ctypes
from typing import Any

import pytest
from confluent_kafka import cimpl

from headway import worker
from headway.settings.connection_settings import CONSUMERS_OWN, PRODUCERS_OWN, connection_of
from headway.workers.worker import worker_of

# librdkafka's names for callbacks are not the binding's, which takes none of these as a setting.
_CALLBACKS_OF_THE_BINDING = {"on_commit", "on_delivery"}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each setting of the librdkafka that is installed, and whose it is: a consumer's (C), a producer's (P), both."""
    file = tmp_path_factory.mktemp("librdkafka") / "settings.md"
    library, c = ctypes.CDLL(cimpl.__file__), ctypes.CDLL(None)
    c.fopen.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(c.fopen(str(file).encode(), b"w"))
    library.rd_kafka_conf_properties_show(opened)
    c.fclose(opened)
    rows = [[cell.strip() for cell in line.split("|")] for line in file.read_text().splitlines()]
    return {row[0]: row[1] for row in rows if len(row) > 2 and row[1] in ("C", "P", "*")}


def test_the_settings_of_one_kind_of_client_are_those_that_librdkafka_says(kinds: dict[str, str]) -> None:
    assert len(kinds) > 150
    assert {name for name, kind in kinds.items() if kind == "C"} == CONSUMERS_OWN - _CALLBACKS_OF_THE_BINDING
    assert {name for name, kind in kinds.items() if kind == "P"} == PRODUCERS_OWN - _CALLBACKS_OF_THE_BINDING


def test_all_settings_that_say_how_to_reach_and_to_trust_brokers_arrive(kinds: dict[str, str]) -> None:
    begin = ("bootstrap", "metadata", "security", "sasl", "ssl", "https", "enable.s", "socket", "broker", "client")
    config: dict[str, Any] = dict.fromkeys(name for name in kinds if name.startswith((*begin, "reconnect", "debug")))
    assert "enable.sasl.oauthbearer.unsecure.jwt" in config
    config |= {"oauth_cb": print, "logger": print, "plugin.library.paths": "", "of.a.newer.librdkafka": 1}
    assert connection_of(config) == config


@pytest.mark.parametrize(
    "name",
    [
        *("group.id", "auto.offset.reset", "isolation.level", "on_commit", "transactional.id", "acks", "linger.ms"),
        *("message.max.bytes", "max.in.flight", "error_cb", "stats_cb", "levels", "value.deserializer"),
    ],
)
def test_what_belongs_to_one_client_stays_with_it(name: str) -> None:
    assert connection_of({name: 1, "client.rack": "a"}) == {"client.rack": "a"}


def test_the_repr_of_a_worker_shows_no_settings() -> None:
    @worker("orders", group="g", config={"sasl.password": "hunter2"}, producer_config={"ssl.key.password": "hunter3"})
    def handle(record: Any, context: Any) -> None: ...

    shown = repr(worker_of(handle))
    assert "orders" in shown
    assert "hunter" not in shown
