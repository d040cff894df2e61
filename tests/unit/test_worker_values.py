"""The kinds of value that a worker reads from JSON, and those of which no instance could ever be read."""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, NamedTuple, Optional, TypedDict, TypeVar

import msgspec
import pytest

from headway.errors import ConfigError
from headway.workers.values import reader_of

T = TypeVar("T")


class Client:
    """A class that JSON has no form for."""


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    name: str
    price: Decimal


@dataclass
class Order:
    number: int
    at: datetime
    colour: Colour
    lines: list[Line]
    anything: Any = None
    client: Client = field(default_factory=Client, compare=False)
    other: Client | None = None


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Tree:
    name: str
    children: list["Tree"]


@dataclass
class WithClient:
    client: Client


@dataclass
class WithClients:
    lines: dict[str, tuple[int, Client]]


@dataclass
class Within:
    part: WithClient


@dataclass
class WithFunction:
    done: Callable[[int], None]


@dataclass
class Unset:
    number: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.number


@dataclass
class OfTheStart:
    number: InitVar[int]


@dataclass
class Abstract(ABC):
    number: int

    @abstractmethod
    def total(self) -> int: ...


@dataclass
class Odd:
    either: "Client | int"


class Point(NamedTuple):
    x: int


class Entry(TypedDict):
    number: int


class Struct(msgspec.Struct):
    number: int


def test_a_dataclass_of_whatever_json_has_is_read() -> None:
    read = reader_of(Order)
    assert read is not None
    raw = b'{"number": 7, "at": "2026-01-01T00:00:00Z", "colour": "red", "lines": [{"name": "a", "price": "1.10"}]}'
    assert read(raw).lines == [Line("a", Decimal("1.10"))]


def test_a_dataclass_with_parameters_and_one_that_holds_itself_are_read() -> None:
    pages, trees = reader_of(Page[Line]), reader_of(Tree)
    assert pages is not None
    assert trees is not None
    assert pages(b'{"items": [{"name": "a", "price": "1"}]}') == Page([Line("a", Decimal(1))])
    assert trees(b'{"name": "a", "children": [{"name": "b", "children": []}]}') == Tree("a", [Tree("b", [])])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            WithClient,
            "value=WithClient cannot be read from JSON: in its field client, JSON has no type for Client.",
        ),
        (WithClients, "in its field lines, JSON has no type for Client. Pass a function that takes the bytes instead."),
        (Within, "in its field part, in its field client, JSON has no type for Client"),
        (Page[Client], "in its field items, JSON has no type for Client"),
        (WithFunction, "in its field done, JSON has no type for Callable"),
        (Unset, "its field total has init=False and no default"),
        (OfTheStart, "`InitVar` fields are not supported"),
        (Abstract, "Abstract is abstract"),
        (Odd, "value=Odd cannot be read from JSON"),
        (
            Point,
            (
                "value=Point cannot create an instance from the bytes of a record. Give a dataclass to read JSON, or a "
                "function"
            ),
        ),
        (Entry, "value=Entry cannot create an instance from the bytes of a record"),
        (Struct, "value=Struct cannot create an instance from the bytes of a record"),
    ],
)
def test_a_class_of_which_no_instance_could_be_read_is_refused(kind: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reader_of(kind)
    assert words in str(refused.value)


@dataclass
class Item:
    number: int


@pytest.mark.parametrize("kind", [Item | None, None | Item, Optional[Item]])  # noqa: UP045 - users write it, too
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_null_that_is_expected_is_none_and_everything_else_is_read_as_ever(kind: Any, elsewhere: bool) -> None:
    read: Any = reader_of(kind)
    read = copy.copy(read) if elsewhere else read
    assert (read(None), read(b"null"), read(b'{"number": 8}')) == (None, None, Item(8))
    with pytest.raises(msgspec.ValidationError):
        read(b'{"number": "eight"}')


def test_a_function_is_not_called_for_a_null() -> None:
    read: Any = copy.copy(reader_of(json.loads))
    assert (read(None), read(b"[1]")) == (None, [1])


def test_a_null_that_is_not_expected_is_unreadable_and_the_error_says_how_to_expect_it() -> None:
    read: Any = reader_of(Item)
    with pytest.raises(ValueError, match=r"it is null instead of Item\. If .* declare value=Item \| None"):
        read(None)


def test_what_could_not_be_read_is_refused_also_where_it_may_be_missing() -> None:
    with pytest.raises(ConfigError, match="cannot be read from JSON"):
        reader_of(WithClient | None)
