"""Makes the page of an experiment: one self-contained HTML file with the picture and the figures."""

import re
from html import escape

from headway.experiments.result import ExperimentResult

_STYLE = """<style>
:root { color-scheme: light dark; --ink: #111827; --faint: #6b7280; --line: #e5e7eb; --back: #f8fafc }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --faint: #9ca3af; --line: #374151; --back: #111827 }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--back) }
h1 { font-size: 1.35rem; line-height: 1.3 }
figure { margin: 1.5rem 0; padding: 1rem; background: #fff; border: 1px solid var(--line); border-radius: 10px }
figure svg { display: block; width: 100%; height: auto }
.table { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left; font-weight: 600 }
th { color: var(--faint); font-weight: 500 }
p { color: var(--faint) }
</style>"""


def experiment_page(result: ExperimentResult, svg: str) -> str:
    """Return the page as HTML. `svg` is the picture as an SVG document."""
    head = "".join(f"<th scope=col>{escape(column)}</th>" for column in result.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in result.rows)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>headway experiment {escape(result.name)}</title>
{_STYLE}
<h1>{escape(result.title)}</h1>
<p>{escape(result.caption)}</p>
<figure role="img" aria-label="{escape(result.title)}">
{_inline(svg)}
</figure>
<div class="table"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody></table></div>
<p>{escape(result.explanation)}</p>
"""


def _inline(svg: str) -> str:
    """Return the element of an SVG document, without its size, so that it is as wide as the page."""
    element = svg[svg.index("<svg") :]
    return re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", element))
