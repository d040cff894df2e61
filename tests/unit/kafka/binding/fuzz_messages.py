"""Fuzzes the C module `native_messages` with messages that this program makes itself, in place of librdkafka's.

It takes the folder of a module that was compiled with sanitizers. Each message and each of its fields has memory of its
own, so the address sanitizer sees any access beyond it, and that each message is freed exactly once.
"""

import copy
import ctypes
import random
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p, py_object
from typing import Any

sys.path.insert(0, sys.argv[1])

import native_messages  # type: ignore[import-not-found]  # the folder must be known first

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = c_void_p, [c_size_t]
libc.free.restype, libc.free.argtypes = None, [c_void_p]

EVENT = -191


class RawMessage(ctypes.Structure):
    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("number", c_void_p),
    ]


class Consumer(ctypes.c_void_p):
    """Stands in for the binding's consumer."""


class Client(Consumer):
    """A consumer of a subclass, which is accepted, too."""


chosen = random.Random(7)
consumer = Client()
topics = [ctypes.create_string_buffer(name) for name in (b"orders-0", "größe".encode())]
waiting: list[dict[str, Any]] = []
living, headers_living = set[int](), dict[int, list[tuple[bytes, bytes | None]]]()
entered = 0


def copied(data: bytes | None) -> int | None:
    if data is None:
        return None
    address: int = libc.malloc(len(data))
    ctypes.memmove(address, data, len(data))
    return address


def made(number: int) -> int:
    fields = waiting[number]
    address: int = libc.malloc(ctypes.sizeof(RawMessage))
    message = RawMessage.from_address(address)
    message.err, message.partition, message.offset = fields["err"], fields["partition"], fields["offset"]
    message.topic = None if fields["topic"] is None else ctypes.addressof(topics[fields["topic"]])
    message.payload, message.len = copied(fields["value"]), len(fields["value"] or b"")
    message.key, message.key_len = copied(fields["key"]), len(fields["key"] or b"")
    message.number = number
    living.add(address)
    return address


def enter(_: Any) -> int:
    global entered  # noqa: PLW0603 - the functions of C have no object
    entered += 1
    return 1


def leave(_: Any) -> None:
    global entered  # noqa: PLW0603
    entered -= 1


def begin(_: Any, state: int) -> None:
    ctypes.memset(state, 0, 24)  # the size of the binding's struct


def end(_: Any, state: int) -> int:
    return 1


def event(_: Any, address: int) -> Any:
    message = RawMessage.from_address(address)
    return message.err, message.partition, message.offset


def consume(queue: int, timeout_ms: int, messages: Any, count: int) -> int:
    taken = range(len(waiting))[:count]
    for index in taken:
        messages[index] = made(index)
    return len(taken)


def destroy(address: int) -> None:
    living.remove(address)
    message = RawMessage.from_address(address)
    for field in (message.payload, message.key, address):
        libc.free(field)


def of(address: int) -> dict[str, Any]:
    return waiting[RawMessage.from_address(address).number or 0]


def timestamp(address: int, kind: Any) -> int:
    kind[0] = of(address)["timestamp"][0]
    return int(of(address)["timestamp"][1])


def detach(address: int, to: Any) -> int:
    found = of(address)["headers"]
    if found is None:
        return -156
    to[0] = number = libc.malloc(1)
    headers_living[number] = found
    return 0


def drop(headers: int) -> None:
    del headers_living[headers]
    libc.free(headers)


def header(headers: int, index: int, name: Any, value: Any, size: Any) -> int:
    found = headers_living[headers]
    if index >= len(found):
        return -156
    name[0] = found[index][0]
    content = found[index][1]
    value[0] = None if content is None else ctypes.cast(ctypes.c_char_p(content), c_void_p).value
    size[0] = len(content or b"")
    return 0


ADDRESS = id(consumer)
callbacks = [
    CFUNCTYPE(c_int, py_object)(enter),
    CFUNCTYPE(None, py_object)(leave),
    CFUNCTYPE(None, py_object, c_void_p)(begin),
    CFUNCTYPE(c_int, py_object, c_void_p)(end),
    CFUNCTYPE(py_object, py_object, c_void_p)(event),
    CFUNCTYPE(c_void_p, c_void_p)(lambda client: ADDRESS),
    CFUNCTYPE(c_void_p, c_void_p)(lambda client: 1),
    CFUNCTYPE(None, c_void_p)(lambda queue: None),
    CFUNCTYPE(c_size_t, c_void_p, c_int, POINTER(c_void_p), c_size_t)(consume),
    CFUNCTYPE(None, c_void_p)(destroy),
    CFUNCTYPE(c_int64, c_void_p, POINTER(c_int))(timestamp),
    CFUNCTYPE(c_int32, c_void_p)(lambda address: of(address)["epoch"]),
    CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))(detach),
    CFUNCTYPE(None, c_void_p)(drop),
    CFUNCTYPE(c_int, c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t))(header),
    CFUNCTYPE(c_void_p, c_void_p)(lambda topic: topic),
]
native_messages.bind(Consumer, tuple(ctypes.cast(each, c_void_p).value for each in callbacks))


def some_bytes() -> bytes | None:
    return chosen.choice([None, b"", chosen.randbytes(1), chosen.randbytes(chosen.randrange(300))])


def some_headers() -> list[tuple[bytes, bytes | None]] | None:
    names = [b"trace", "größe".encode(), b"", b"gr\xfc\xdfe"]
    count = chosen.randrange(5)
    return chosen.choice([None, [(chosen.choice(names), some_bytes()) for _ in range(count)]])


def some_fields(offset: int) -> dict[str, Any]:
    err = chosen.choice([0] * 20 + [EVENT])
    return {
        "err": err,
        "topic": None if err and chosen.random() < 0.3 else chosen.choice([0, 0, 0, 1]),
        "partition": chosen.choice([0, 0, 0, 2**31 - 1]),
        "offset": chosen.choice([offset, 2**63 - 1]),
        "key": some_bytes(),
        "value": some_bytes(),
        "headers": some_headers(),
        "timestamp": chosen.choice([(0, -1), (1, 2**62), (2, 5)]),
        "epoch": chosen.choice([-1, 0, 2**31 - 1]),
    }


def headers_of(message: Any) -> Any:
    try:
        return message.headers()
    except SystemError:  # as the binding does if a name is not UTF-8
        return message.headers()


def is_utf_8(name: bytes) -> bool:
    return b"\xfc" not in name


def expected(fields: dict[str, Any]) -> tuple[Any, ...]:
    headers = fields["headers"]
    kept = None if headers is None else [(name.decode(), value) for name, value in headers if is_utf_8(name)]
    epoch = None if fields["epoch"] < 0 else fields["epoch"]
    place = topics[fields["topic"]].value.decode(), fields["partition"], fields["offset"], epoch
    return *place, fields["key"], fields["value"], kept, fields["timestamp"]


def found(message: Any) -> tuple[Any, ...]:
    headers = headers_of(message)
    place = message.topic(), message.partition(), message.offset(), message.leader_epoch()
    return *place, message.key(), message.value(), headers, message.timestamp()


def check(most: int) -> None:
    records, events = native_messages.take(consumer, most, 0)
    assert not living
    assert not entered
    of_most = waiting[:most]
    assert events == [(each["err"], each["partition"], each["offset"]) for each in of_most if each["err"]]
    unread = chosen.randrange(3)  # headers that nobody reads are freed, too
    whole = [each for each in of_most if not each["err"]]
    offsets, sizes, ends, has_headers = native_messages.columns(records, 7)
    assert offsets == [each["offset"] for each in whole]
    assert sizes == [7 + len(each["key"] or b"") + len(each["value"] or b"") for each in whole]
    places = [(each["topic"], each["partition"]) for each in whole]
    assert ends == [
        index for index in range(1, len(whole) + 1) if places[index - 1 : index] != places[index : index + 1]
    ]
    assert has_headers == any(each["headers"] is not None for each in whole)
    for record, fields in list(zip(records, whole, strict=True))[unread:]:
        assert found(record) == expected(fields)
        assert found(copy.copy(record)) == expected(fields)
        record.set_headers([("name", b"1")])
        assert record.headers() == [("name", b"1")]


for _ in range(300):
    waiting[:] = [some_fields(offset) for offset in range(chosen.randrange(80))]
    check(chosen.choice([0, 1, 8, 64, 1_000]))
    assert not headers_living

for wrong in (
    (None, 1, 0),
    (consumer, -1, 0),
    (consumer, 1_000_001, 0),
    (consumer, 2**70, 0),
    (consumer, 1, 2**40),
    (consumer,),
    (Consumer(), 1, 0),  # its client does not belong to it
):
    try:
        native_messages.take(*wrong)
    except (ValueError, OverflowError, TypeError, RuntimeError):
        assert not entered
        continue
    raise AssertionError(f"{wrong} was accepted")
print("every message was copied and freed")
