"""Functions that safely read exceptions from users' code, whatever these exceptions do.

An exception is an object of an unknown class. The attributes of an exception can be properties that raise errors,
computing its text can raise an error or return a huge string, and it can refuse assignments. So these functions check
the exception's type, and access the attributes of `BaseException` directly instead of through the exception's class.
None of these functions raises an error because of an exception.
"""

from typing import Any

LONGEST_TEXT = 10_000  # the maximum length of an error's text, in characters

_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_hides_context = BaseException.__dict__["__suppress_context__"].__get__
_members_of = BaseExceptionGroup.__dict__["exceptions"].__get__
_name_of = type.__dict__["__qualname__"].__get__
_set_traceback = BaseException.__dict__["__traceback__"].__set__


def is_error(value: object) -> bool:
    """Return whether a value is an exception, whatever class it claims to have."""
    return issubclass(type(value), BaseException)


def attribute(error: BaseException, name: str) -> Any:
    """Return an attribute of an error.

    Returns None if the error has no such attribute or reading it raises an error.
    """
    try:
        return getattr(error, name)
    except BaseException:
        return None


def text_of(error: BaseException) -> str:
    """Return the text of an error, cut to `LONGEST_TEXT` characters.

    Returns "" if computing the text raises an error.
    """
    try:
        return _shortened(str(error))
    except BaseException:
        return ""


def description_of(error: BaseException) -> str:
    """Return the `repr` of an error, cut to `LONGEST_TEXT` characters, or its class name if `repr` raises an error."""
    try:
        return _shortened(repr(error))
    except BaseException:
        return class_name(type(error))


def cause_or_context(error: BaseException) -> BaseException | None:
    """Return the error that Python shows before this error: its cause, or its context unless that is suppressed."""
    cause: BaseException | None = _cause_of(error)
    return _context_of(error) if cause is None and not _hides_context(error) else cause


def kind_of(error: BaseException) -> str:
    """Return the name of an error's class, with its module."""
    try:
        return f"{type(error).__module__}.{class_name(type(error))}"
    except BaseException:
        return class_name(type(error))


def class_name(kind: type) -> str:
    """Return the name of a class, whatever its metaclass does."""
    return str(_name_of(kind))


def without_frames(error: BaseException) -> BaseException:
    """Drop the tracebacks of an error and of all its causes, contexts and members. Returns the same error.

    The frames of a traceback keep their variables in memory, and one of these variables is the previous attempt with
    its error. So if the tracebacks were kept, all earlier failures would stay in memory.
    """
    seen = set[int]()
    chain = [error]
    while chain:
        each = chain.pop()
        if id(each) not in seen:
            seen.add(id(each))
            _set_traceback(each, None)
            chain += [came_of for came_of in (_cause_of(each), _context_of(each)) if came_of is not None]
            chain += _members_of(each) if issubclass(type(each), BaseExceptionGroup) else ()
    return error


def _shortened(text: str) -> str:
    exact = str.__getitem__(text, slice(LONGEST_TEXT))  # `text` can be an instance of a subclass of `str`
    return exact if str.__len__(text) <= LONGEST_TEXT else f"{exact} …"
