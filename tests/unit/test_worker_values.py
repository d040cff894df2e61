"""The kinds of value that a worker reads from JSON, and those of which no instance could ever be read."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from headway.errors import ConfigError
from headway.worker_values import reader_of

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
            "value=WithClient cannot be read from JSON: of its field client, Client is no type that JSON has.",
        ),
        (WithClients, "of its field lines, Client is no type that JSON has. Give a function instead."),
        (Within, "of its field part, of its field client, Client is no type that JSON has"),
        (Page[Client], "of its field items, Client is no type that JSON has"),
        (WithFunction, "of its field done, Callable is no type that JSON has"),
        (Unset, "its field total has init=False and no default"),
        (OfTheStart, "`InitVar` fields are not supported"),
        (Abstract, "Abstract is abstract"),
        (Odd, "value=Odd cannot be read from JSON"),
        (Point, "value=Point makes no instance of the bytes of a record. Give a dataclass, for JSON, or a function"),
        (Entry, "value=Entry makes no instance of the bytes of a record"),
        (Struct, "value=Struct makes no instance of the bytes of a record"),
    ],
)
def test_a_class_of_which_no_instance_could_be_read_is_refused(kind: Any, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        reader_of(kind)
    assert words in str(refused.value)
