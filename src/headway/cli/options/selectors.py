"""The option `--where`, by which commands select records."""

import click

from headway.core.selectors.selector import Selector
from headway.errors import ConfigError


class SelectorType(click.ParamType[Selector]):
    """A selector, which a mistake in it refuses with its position."""

    name = "selector"

    def convert(self, value: str | Selector, param: click.Parameter | None, ctx: click.Context | None) -> Selector:
        """Parse the text of a selector."""
        if isinstance(value, Selector):
            return value
        try:
            return Selector.parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


WHERE = SelectorType()
