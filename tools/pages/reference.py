"""Writes the pages of the reference from the code: the public names, the settings, and the commands."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]


def write(folder: Path) -> list[str]:
    """Write the pages of the reference. Returns their names, in the order of the menu."""
    folder.mkdir(parents=True)
    pages = {"README.md": "", "commands.md": _commands(), "settings.md": _settings()}
    for module, purpose, names in _public_modules():
        pages[f"{module.replace('.', '-')}.md"] = _module(module, purpose, names)
    pages["README.md"] = _overview()
    for name, text in pages.items():
        (folder / name).write_text(text)
    return [*pages]


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, in one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()))[0]


def _public_modules() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each public module with its purpose and its public names, from docs/names.md."""
    listed = re.findall(
        r"^\| `(headway[\w.]*)` \| (.*?) \| (.*) \|$", (ROOT / "docs" / "names.md").read_text(), re.MULTILINE
    )
    for module, purpose, names in listed:
        yield module, purpose, re.findall(r"`(\w+)`", names)


def _overview() -> str:
    rows = "".join(
        f"| [`{module}`]({module.replace('.', '-')}.md) | {purpose} |\n" for module, purpose, _ in _public_modules()
    )
    return (
        "# Reference\n\n"
        "These pages are written from the code. [Public names](../names.md) lists what is public, and what a new "
        "version can change.\n\n"
        f"| module | what it is for |\n|---|---|\n{rows}\n"
        "| other | page |\n|---|---|\n"
        "| the commands and their options | [commands](commands.md) |\n"
        "| the settings with dotted keys | [settings](settings.md) |\n"
        "| exit codes | [running in production](../running-in-production.md#exit-codes) |\n"
        "| what `--json` prints | [JSON for programs](../json.md) |\n"
        "| metrics | [metrics](../metrics.md) |\n"
        "| all errors | [`headway.errors`](headway-errors.md) |\n"
    )


def _module(module: str, purpose: str, names: list[str]) -> str:
    """Return a module's page, on which mkdocstrings writes each name's docstring and signature."""
    public = importlib.import_module(module)
    text = f"# {module}\n\n{purpose[0].upper()}{purpose[1:]}.\n"
    if module == "headway.errors":
        tree = inspect.cleandoc(public.__doc__ or "").partition("\n")[2].strip()
        text += f"\n```text\n{tree}\n```\n"
    for name in names:
        thing = getattr(public, name)
        defined = inspect.getattr_static(thing, "__module__", None) if callable(thing) else None
        path = f"{defined}.{name}" if isinstance(defined, str) else f"{module}.{name}"
        text += f"\n::: {path}\n    options:\n      heading: {name}\n      toc_label: {name}\n"
    return text


def _settings() -> str:
    from headway.settings import config  # noqa: PLC0415 - so that the other pages need no settings

    text = inspect.cleandoc(config.__doc__ or "")
    # A row of a table that is wrapped in the source is one line on a page.
    text = re.sub(r"^(\|[^\n]*[^|\n])\n(?!\|)", r"\1 ", text, flags=re.MULTILINE)
    return f"# Settings\n\n{text}\n"


def _commands() -> str:
    from headway.cli import headway  # noqa: PLC0415 - as above

    text = "# Commands\n\n[The command line](../cli.md) shows how to use them. This page lists each option.\n"
    return text + "".join(_command_sections(headway, click.Context(headway, info_name="headway")))


def _command_sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the section of a command, and of each of its subcommands."""
    if not isinstance(command, click.Group):
        yield f"\n## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
        return
    for name in command.list_commands(context):
        each = command.get_command(context, name)
        assert each is not None  # noqa: S101 - for the type checker
        yield from _command_sections(each, click.Context(each, info_name=name, parent=context, max_content_width=100))
