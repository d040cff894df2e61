"""The options of a parallel consumer are the same wherever users see them: keywords, help and docstring."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from mypy import api

from headway import ParallelConsumer, worker
from headway.errors import ConfigError
from headway.parallel.options import ParallelOptions, ParallelOptionsDict

FIELDS = {each.name: each for each in dataclasses.fields(ParallelOptions)}


def test_the_keywords_that_type_checkers_know_are_the_options_with_their_types() -> None:
    assert get_type_hints(ParallelOptionsDict) == {name: each.type for name, each in FIELDS.items()}


def test_the_docstring_explains_each_option() -> None:
    args = inspect.getdoc(ParallelConsumer) or ""
    assert set(re.findall(r"^    (\w+): ", args, re.MULTILINE)) == {"config", *FIELDS}


def test_the_page_leads_to_each_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "parallel.md").read_text()
    section = page.partition("## Options\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", section.partition("|---|")[2])) == sorted(FIELDS)


@pytest.mark.parametrize("function", [ParallelConsumer, worker])
def test_help_shows_each_option_with_its_type_and_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())
    for name, each in FIELDS.items():
        assert (shown[name].default, shown[name].annotation) == (each.default, each.type)


def test_an_unknown_option_is_refused_with_a_near_one() -> None:
    options: Any = {"hand_over_timout": 60}
    with pytest.raises(ConfigError, match=r"has no option 'hand_over_timout'\. Did you mean 'hand_over_timeout'"):
        ParallelConsumer({"group.id": "billing"}, **options)


def test_options_go_from_one_consumer_to_another_as_they_are() -> None:
    options = ParallelOptions(max_concurrency=5, tenant="key", tenant_weights={"big": 2.0})
    assert ParallelOptions(**options.as_keywords()) == options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ordering": "partition"}, "Use ordering='key' or 'key_if_any'"),
        ({"ordering": "unordered"}, "Use ordering='key' or 'key_if_any'"),
        ({"tenant": "header:customer"}, "Use tenant='key'"),
        ({"tenant": lambda record: None}, "Use tenant='key'"),
    ],
)
def test_latest_only_is_refused_where_a_key_would_not_decide(options: Any, sentence: str) -> None:
    ParallelOptions(latest_only=True, tenant="key:/")
    with pytest.raises(ConfigError, match=sentence):
        ParallelOptions(latest_only=True, **options)


DECLARED = """
from headway import ConsumerRecord, ParallelConsumer, worker

@worker("orders", group="billing", {options})
def bill(record: ConsumerRecord) -> None: ...

ParallelConsumer({{"group.id": "billing"}}, {options})
"""


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ('hand_over_timeout=60, time_limit=10.5, ordering="partition"', None),
        ("hand_over_timout=60", 'Unexpected keyword argument "hand_over_timout"'),
        ('time_limit="ten"', 'Argument "time_limit" to "{}" has incompatible type "str"; expected "float | None"'),
    ],
)
def test_a_type_checker_refuses_options_that_are_misspelt_or_of_another_type(
    tmp_path_factory: pytest.TempPathFactory, options: str, refused: str | None
) -> None:
    cache = tmp_path_factory.getbasetemp() / "mypy"
    program = tmp_path_factory.mktemp("declared") / "program.py"
    program.write_text(DECLARED.format(options=options))
    said, crashed, _ = api.run(["--strict", "--config-file=", f"--cache-dir={cache}", str(program)])
    assert not crashed
    found = [line for line in said.splitlines() if " error: " in line]
    assert len(found) == (0 if refused is None else 2)
    for line, name in zip(found, ("worker", "ParallelConsumer"), strict=False):
        assert (refused or "").format(name) in line
