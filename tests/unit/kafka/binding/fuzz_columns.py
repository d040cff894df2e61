"""Fuzzes the C module `native_columns` with messages that this program makes itself, in place of librdkafka's.

It takes the folder of a module that was compiled with sanitizers. Each message and each of its fields has memory of its
own, so the address sanitizer sees any access beyond it, and that each message is freed exactly once.
"""

import ctypes
import random
import sys
from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

sys.path.insert(0, sys.argv[1])

import native_columns  # type: ignore[import-not-found]  # the folder must be known first

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = c_void_p, [c_size_t]
libc.free.restype, libc.free.argtypes = None, [c_void_p]

EVENT = -191
MOST_BYTES = 1_000  # the module is compiled with this limit, because nobody can make messages of gigabytes here


class NativeMessage(ctypes.Structure):
    _fields_ = [
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("timestamp", c_void_p),
    ]


Pointer = POINTER(NativeMessage)
chosen = random.Random(7)
names = [ctypes.create_string_buffer(name) for name in (b"orders-0", "größe".encode())]
waiting: list[dict[str, Any]] = []
living = set[int]()


def copied(data: bytes | None) -> int | None:
    if data is None:
        return None
    address: int = libc.malloc(len(data))
    ctypes.memmove(address, data, len(data))
    return address


def made(fields: dict[str, Any]) -> int:
    address: int = libc.malloc(ctypes.sizeof(NativeMessage))
    message = NativeMessage.from_address(address)
    message.err, message.partition, message.offset = fields["err"], fields["partition"], fields["offset"]
    message.topic = None if fields["topic"] is None else ctypes.addressof(names[fields["topic"]])
    message.payload, message.len = copied(fields["value"]), len(fields["value"] or b"")
    message.key, message.key_len = copied(fields["key"]), len(fields["key"] or b"")
    message.timestamp = fields["timestamp"]
    living.add(address)
    return address


def consume(queue: int, timeout_ms: int, messages: Any, count: int) -> int:
    taken = waiting[:count]
    for index, fields in enumerate(taken):
        messages[index] = made(fields)
    return len(taken)


def destroy(address: int) -> None:
    living.remove(address)
    message = NativeMessage.from_address(address)
    for field in (message.payload, message.key, address):
        libc.free(field)


def timestamp(address: int, kind: Any) -> int:
    kind[0] = NativeMessage.from_address(address).partition % 3
    return NativeMessage.from_address(address).timestamp or 0


def reason(address: int) -> int:
    return ctypes.addressof(names[0])


def name(topic: int) -> int:
    return topic


callbacks = [
    CFUNCTYPE(c_size_t, c_void_p, c_int, POINTER(c_void_p), c_size_t)(consume),
    CFUNCTYPE(None, c_void_p)(destroy),
    CFUNCTYPE(c_int64, c_void_p, POINTER(c_int))(timestamp),
    CFUNCTYPE(c_void_p, c_void_p)(reason),
    CFUNCTYPE(c_void_p, c_void_p)(name),
]
native_columns.bind(*(ctypes.cast(each, c_void_p).value for each in callbacks))


def some_bytes() -> bytes | None:
    return chosen.choice([None, b"", chosen.randbytes(1), chosen.randbytes(chosen.randrange(300))])


def some_fields(offset: int) -> dict[str, Any]:
    err = chosen.choice([0] * 20 + [EVENT])
    return {
        "err": err,
        "topic": None if err and chosen.random() < 0.3 else chosen.choice([0, 0, 0, 1]),
        "partition": chosen.choice([0, 0, 0, 2**31 - 1]),
        "offset": chosen.choice([offset, 2**63 - 1]),
        "key": some_bytes(),
        "value": some_bytes(),
        "timestamp": chosen.choice([1, 2**62]),
    }


def field(column: tuple[bytes, bytes | None, bytes], index: int) -> bytes | None:
    offsets, validity, data = column
    if validity is not None and not validity[index // 8] >> index % 8 & 1:
        return None
    begin, end = memoryview(offsets).cast("i")[index : index + 2]
    return data[begin:end]


def rows(taken: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for item in taken:
        if len(item) == 5:
            found.append(item)
            continue
        topic, partition, count, key, value, offsets, timestamps, kinds = item
        assert len(offsets) == len(timestamps) == 8 * count == 2 * len(kinds)
        for column in (key, value):
            assert len(column[0]) == 4 * (count + 1)
            assert column[1] is None or len(column[1]) == (count + 7) // 8
            assert count == 1 or len(column[2]) <= MOST_BYTES
        for index in range(count):
            numbers = memoryview(offsets).cast("q")[index], memoryview(timestamps).cast("q")[index]
            kind = memoryview(kinds).cast("i")[index]
            found.append((topic, partition, field(key, index), field(value, index), *numbers, kind))
    return found


def expected(fields: dict[str, Any]) -> tuple[Any, ...]:
    topic = None if fields["topic"] is None else names[fields["topic"]].value.decode()
    if fields["err"]:
        return topic, fields["partition"], fields["offset"], EVENT, "orders-0"
    kind = fields["partition"] % 3 - 1
    return topic, fields["partition"], fields["key"], fields["value"], fields["offset"], fields["timestamp"], kind


for _ in range(300):
    waiting[:] = [some_fields(offset) for offset in range(chosen.randrange(80))]
    most = chosen.choice([1, 8, 9, 64, 1_000])
    assert rows(native_columns.take(1, most, 0)) == [expected(each) for each in waiting[:most]]
    assert not living

for wrong in ((0, 1, 0), (1, 0, 0), (1, -1, 0), (1, 2**62, 0), (2**70, 1, 0), (1, 1, 2**40), ("queue", 1, 0)):
    try:
        native_columns.take(*wrong)
    except (ValueError, OverflowError, TypeError):
        continue
    raise AssertionError(f"{wrong} was accepted")
print("every message was copied and freed")
