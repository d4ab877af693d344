"""The report as one HTML page that needs nothing else: figures as inline SVG, tables, both light and dark."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from .figures_plot import INK, Plot
from .run_data import Run

_CSS = """
:root { color-scheme: light dark; --ink: #1f1f1f; --paper: #ffffff; --line: #d5d5d5; --soft: #5b5b5b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --line: #3a3d42; --soft: #a5a8ad; } }
@media print { :root { --ink: #000; --paper: #fff; --line: #bbb; --soft: #444; }
  figure, table { break-inside: avoid; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.note, footer { color: var(--soft); font-size: .9rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; } th, td { text-align: left; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } tr.section th { padding-top: .9rem; }
"""


def page(runs: Sequence[Run], rows: Sequence[Sequence[str]], sentences: Sequence[str], plots: Sequence[Plot]) -> str:
    """Return the page.

    Args:
        runs: that it is about.
        rows: of the table: section, label, a text a run.
        sentences: what differs, in words.
        plots: in their order.
    """
    traces = sorted({run.summary["trace"].rpartition("/")[2] for run in runs})
    title = f"kvreplay: {', '.join(traces)}: {', '.join(run.name for run in runs)}"
    body = [f"<h1>{html.escape(title)}</h1>"]
    if sentences:
        body.append("<h2>What differs</h2><ul>")
        body += [f"<li>{html.escape(sentence)}</li>" for sentence in sentences]
        body.append("</ul>")
    for plot in plots:
        body.append(f'<h2 id="{plot.name}">{html.escape(plot.title)}</h2>')
        body.append(f'<p class="note">{html.escape(plot.note)} Numbers: <code>{plot.name}.csv</code>.</p>')
        body.append(f'<figure role="img" aria-label="{html.escape(plot.title)}">{inline_svg(plot)}</figure>')
    body.append("<h2>Side by side</h2>")
    body.append(_table([run.name for run in runs], rows))
    body.append("<h2>Configuration</h2>")
    body += [f"<h3>{html.escape(run.name)}</h3><pre>{html.escape(_config(run))}</pre>" for run in runs]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_CSS}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def inline_svg(plot: Plot) -> str:
    """Return a figure as SVG that takes the page's text colour and whose ids clash with no other figure's."""
    text = plot.image("svg").decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{plot.name}-", text)
    # The page scales the figure; its own size in points would hold against it.
    return re.sub(r'^(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'^(<svg[^>]*?) height="[^"]*"', r"\1", text))


def _config(run: Run) -> str:
    try:
        return (run.folder / "config.yaml").read_text()
    except OSError:
        return ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<div class='scroll'><table><tr><th></th>", *(f"<th>{html.escape(name)}</th>" for name in names), "</tr>"]
    section = ""
    for row in rows:
        if row[0] != section:
            section = row[0]
            lines.append(f'<tr class="section"><th colspan="{len(names) + 1}">{html.escape(section)}</th></tr>')
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[2:])
        lines.append(f"<tr><td>{html.escape(row[1])}</td>{cells}</tr>")
    return "".join([*lines, "</table></div>"])
