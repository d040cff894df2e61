"""Declared handlers of any signature: called as their signature allows, or refused, and never anything else."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.declarations import is_coroutine_function
from headway.errors import ConfigError
from headway.execution.handlers import with_context

KINDS = ("positional", "either", "optional", "*", "named", "named optional", "**")
ORDER = {kind: at for at, kind in enumerate(KINDS)}
PARTS = {
    "positional": "{0}, /",
    "either": "{0}",
    "optional": "{0}=None",
    "*": "*{0}",
    "named": "{0}",
    "named optional": "{0}=None",
    "**": "**{0}",
}


def text_of(kinds: list[str]) -> str:
    """Return a parameter list with parameters of these kinds, in an order that Python allows."""
    ordered = sorted(kinds, key=ORDER.__getitem__)
    parts: list[str] = []
    for at, kind in enumerate(ordered):
        if kind.startswith("named") and not any(part.startswith("*") for part in parts):
            parts.append("*")
        part = PARTS[kind].format(f"p{at}")
        if kind == "positional" and ordered[at + 1 : at + 2] == ["positional"]:
            part = part.removesuffix(", /")
        parts.append(part)
    return ", ".join(parts)


parameters = st.tuples(
    st.lists(st.sampled_from(KINDS[:3]), max_size=4),
    st.lists(st.sampled_from(("named", "named optional")), max_size=2),
    st.lists(st.sampled_from(("*", "**")), unique=True),
).map(lambda kinds: text_of([each for some in kinds for each in some]))


def as_function(declared: str, make_async: bool) -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    source = f"{'async ' if make_async else ''}def handler({declared}): ..."
    exec(source, scope)  # noqa: S102 - our own text
    return scope["handler"]  # type: ignore[no-any-return]


FORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "function": lambda function: function,
    "static method": lambda function: type("Class", (), {"handle": staticmethod(function)})().handle,
    "method": lambda function: type("Class", (), {"handle": function})().handle,
    "callable object": lambda function: type("Class", (), {"__call__": function})(),
    "partial": functools.partial,
    "partial with one argument": lambda function: functools.partial(function, "given"),
}


def fits(handler: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(handler).bind(*range(count))
    except (TypeError, ValueError):  # ValueError: a method without any parameter
        return False
    return True


@given(parameters, st.sampled_from(sorted(FORMS)), st.booleans())
def test_a_handler_gets_the_context_if_it_can_take_it_and_is_refused_if_it_takes_no_record(
    declared: str, form: str, make_async: bool
) -> None:
    handler = FORMS[form](as_function(declared, make_async))
    if not fits(handler, 1) and not fits(handler, 2):
        with pytest.raises(ConfigError, match=r"can be called neither with|cannot be called with"):
            with_context(handler)
        return
    bound = with_context(handler)
    gets_context = fits(handler, 2) and not (fits(handler, 1) and has_a_default_of_its_own(handler))
    assert (bound is handler) == gets_context
    assert is_coroutine_function(bound) == make_async
    result = bound("record", "context")  # it raises no TypeError
    if make_async:
        asyncio.run(result)


def has_a_default_of_its_own(handler: Callable[..., Any]) -> bool:
    """Whether the second parameter has a default, as `factor` in `lambda record, factor=2`, which it keeps."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each for each in inspect.signature(handler).parameters.values() if each.kind in kinds]
    return len(positional) > 1 and positional[1].default is not inspect.Parameter.empty


@given(parameters, st.booleans())
def test_a_decorator_with_any_arguments_gives_a_handler_what_it_takes_itself(declared: str, make_async: bool) -> None:
    handler = as_function(declared, make_async)

    @functools.wraps(handler)
    def decorated(*arguments: Any) -> Any:
        return handler(*arguments)

    if fits(handler, 1) or fits(handler, 2):
        result = with_context(decorated)("record", "context")
        if make_async:
            asyncio.run(result)


def test_what_a_decorator_takes_itself_counts_and_not_what_it_wraps() -> None:
    def bill(record: Any, context: Any, database: Any) -> Any:
        return record, context, database

    @functools.wraps(bill)
    def with_database(record: Any) -> Any:
        return bill(record, None, "database")

    assert with_context(with_database)("record", "context") == ("record", None, "database")


@pytest.mark.parametrize("builtin", [print, dict.fromkeys, [].append, int, max])
def test_a_builtin_gets_the_context_if_it_can_take_it_or_does_not_tell(builtin: Any) -> None:
    try:
        takes_one_only = fits(builtin, 1) and (not fits(builtin, 2) or has_a_default_of_its_own(builtin))
    except ValueError:
        takes_one_only = False
    assert (with_context(builtin) is not builtin) == takes_one_only


def alone(record: Any) -> Any:
    return record


def test_a_handler_of_one_argument_can_go_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(with_context(alone)))  # noqa: S301 - our own bytes
    assert copy("record", "context") == "record"
    assert with_context(copy) is copy


def both(record: Any, *, database: Any) -> Any:
    return record, database


def test_what_a_handler_of_one_argument_was_given_before_is_passed_on_also_in_another_process() -> None:
    bound = with_context(functools.partial(both, database="database"))
    copy = pickle.loads(pickle.dumps(bound))  # noqa: S301 - our own bytes
    assert bound("record", "context") == copy("record", "context") == ("record", "database")
