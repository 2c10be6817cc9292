# SPDX-License-Identifier: Apache-2.0
"""Pieces of a report in HTML: one file without scripts, that needs no network."""

import base64
import html
import json
from typing import Any

from experiments import tables

_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1a1a1a;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { max-width: 46rem; margin: .5rem 0; }
.lead { color: #444; font-size: 1.05rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .8rem; text-align: right; border-bottom: 1px solid #e3e3e3;
  white-space: nowrap; }
th { border-bottom: 2px solid #1a1a1a; font-weight: 600; vertical-align: bottom;
  white-space: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child, code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
td:first-child { font-size: .88rem; }
tbody tr:hover { background: #f6f8fa; }
.best { font-weight: 700; color: #005a30; background: #e8f5ee; }
.warning, .note { border-left: 4px solid #d55e00; background: #fdf4ee; padding: .5rem .9rem; }
.note { border-color: #56b4e9; background: #f2f9fd; }
.notes { font-size: .88rem; color: #444; padding-left: 1.2rem; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
figcaption { font-size: .88rem; color: #444; max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0;
  font-size: .92rem; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { background: #f6f8fa; padding: .9rem 1rem; overflow-x: auto; font-size: .85rem; }
summary { cursor: pointer; }
@media print { main { max-width: none; padding: 0; } tbody tr:hover { background: none; } }
"""


def page(title: str, *sections: str) -> str:
  """Puts sections into one self-contained document."""
  title = html.escape(title)
  body = '\n'.join(sections)
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def section(title: str, *parts: str) -> str:
  """A heading and what stands below it."""
  return '\n'.join([f'<section>\n<h2>{html.escape(title)}</h2>', *parts, '</section>'])


def paragraph(text: str, kind: str = '') -> str:
  """A paragraph of plain text."""
  attribute = f' class="{kind}"' if kind else ''
  return f'<p{attribute}>{html.escape(text)}</p>'


def table(content: tables.Table) -> str:
  """A table with the best of each column marked, and its notes below."""
  header = ''.join(f'<th scope="col">{html.escape(name)}</th>' for name in content.header)
  rows = '\n'.join(f'<tr>{"".join(map(_cell, row))}</tr>' for row in content.rows)
  notes = ''.join(f'<li>{html.escape(note)}</li>' for note in content.notes)
  return (
      f'<div class="scroll"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
      f'</table></div>' + (f'\n<ol class="notes">{notes}</ol>' if notes else '')
  )


def _cell(entry: tables.Entry) -> str:
  attribute = ' class="best"' if entry.best else ''
  note = f'<sup>{entry.note}</sup>' if entry.note else ''
  return f'<td{attribute}>{html.escape(entry.text)}{note}</td>'


def figure(svg: bytes, *, alt: str, caption: str) -> str:
  """An image that is part of the page."""
  data = base64.b64encode(svg).decode()
  return (
      f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{html.escape(alt)}">\n'
      f'<figcaption>{html.escape(caption)}</figcaption></figure>'
  )


def facts(pairs: dict[str, Any]) -> str:
  """Names and values, one pair a line."""
  lines = ''.join(
      f'<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>\n'
      for name, value in pairs.items()
  )
  return f'<dl>\n{lines}</dl>'


def details(title: str, value: Any) -> str:
  """A value as JSON that opens on a click."""
  content = html.escape(json.dumps(value, indent=2, ensure_ascii=False))
  return folded(title, f'<pre>{content}</pre>')


def folded(title: str, *parts: str) -> str:
  """Parts that open on a click."""
  return '\n'.join([f'<details><summary>{html.escape(title)}</summary>', *parts, '</details>'])
