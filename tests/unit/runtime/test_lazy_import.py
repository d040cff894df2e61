"""The public names, which are imported when they are first asked for."""

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ["headway", "headway.broker", "headway.spark", "headway.testing"]


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_are_told_the_names_that_there_are_and_where_they_come_from(package: str) -> None:
    lazy = import_module(package)
    program, stub = (ast.parse(Path(str(lazy.__file__)).with_suffix(suffix).read_text()) for suffix in (".py", ".pyi"))
    imported = {name.name: each.module for each in stub.body if isinstance(each, ast.ImportFrom) for name in each.names}
    [told] = [ast.literal_eval(each.value) for each in stub.body if isinstance(each, ast.Assign)]
    [modules] = [ast.literal_eval(each) for each in ast.walk(program) if isinstance(each, ast.Dict)]
    assert imported == modules
    assert sorted(told) == sorted(lazy.__all__)
    for name, module in imported.items():
        assert getattr(lazy, name) is getattr(import_module(str(module)), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_submodule_can_take_the_place_of_a_name(package: str) -> None:
    lazy = import_module(package)
    assert not {each.name for each in pkgutil.iter_modules(lazy.__path__)} & set(lazy.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_there_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'PriorityQueue'"):
        _ = import_module(package).PriorityQueue


def test_the_help_of_the_command_imports_no_kafka_client() -> None:
    looked = "import sys, headway.cli; assert 'confluent_kafka' not in sys.modules; print('so it is')"
    ran = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("so it is\n", "")
