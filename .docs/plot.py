"""Put figures into examples/manual/performance.rst and README.rst, and draw the plot.

    python .ci/instruments/benchmark.py --servers waitress,cheroot > figures.txt
    python .docs/plot.py figures.txt

Run both by one Python, which has the other frameworks and servers: this program looks up their
versions. Without a file it only draws the plot again, from the table that stands in the page. Each
row of the plot divides its figures by that of webapp.py, so the dot of webapp.py is always at 1.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import re
import sys
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "examples" / "manual" / "performance.rst"
README = ROOT / "README.rst"
NAMES = ("webapp", "bottle", "falcon", "flask", "waitress", "cheroot")
SHOWN = {
    "in the process": [
        "hello",
        "a small JSON document",
        "a path with one parameter",
        "404 as JSON",
        "an exception, 409 by a hook",
        "a form of five fields",
        "a JSON body of 100 KiB",
        "a page of 1,000 rows",
        "a session, read and written",
        "a file of 100 KiB",
        "start to first answer, ms",
    ],
    "through sockets": [
        "the same hello, 16 connections",
        "different requests, 16",
        "different, JSON answers, 16",
        "1 MiB sent, 16 connections",
    ],
}
# What README.rst shows of it: what its rows are called, and which columns compare the same work.
CHOSEN = [
    ("hello", "a short text", ("bottle", "falcon", "flask")),
    ("a JSON body of 100 KiB", "a JSON body of 100 KiB", ("bottle", "falcon", "flask")),
    ("a form of five fields", "a form of five fields", ("bottle", "falcon", "flask")),
    ("a page of 1,000 rows", "a page of 1,000 rows from a template", ("bottle", "flask")),
    ("start to first answer, ms", "start of a program", ("bottle", "falcon", "flask")),
    ("the same hello, 16 connections", "a short text through a socket", ("waitress", "cheroot")),
]
LEAST, MOST = 1 / 4, 64
LEFT, WIDTH, ROW, TOP = 250, 700, 22, 64
STYLE = """
.back { fill: #ffffff }
text { font: 13px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.line { stroke: #d0d7de } .one { stroke: #57606a }
.webapp { fill: #0969da } .bottle { fill: #bf8700 } .falcon { fill: #8250df }
.flask { fill: #cf222e } .waitress { fill: #1a7f37 } .cheroot { fill: #bf3989 }
@media (prefers-color-scheme: dark) {
  .back { fill: #0d1117 }
  text { fill: #e6edf3 } .small { fill: #9198a1 } .line { stroke: #3d444d } .one { stroke: #9198a1 }
  .webapp { fill: #58a6ff } .bottle { fill: #e3b341 } .falcon { fill: #bc8cff }
  .flask { fill: #ff7b72 } .waitress { fill: #3fb950 } .cheroot { fill: #f778ba }
}
"""


def read_tables(text):
    """Return the rows of each table: title to the figure of each column."""
    tables, columns = {}, []
    for line in text.splitlines():
        heading = re.match(r"    ([^:]+): [µa-zA-Z ]+?((?: *(?:base|[a-z]+)){3,})$", line)
        if "webapp" in line and heading:
            starts = [*re.finditer("base|" + "|".join(NAMES), line)]
            columns = [(each[0], each.end()) for each in starts]
            rows = tables[heading[1]] = {}
        elif columns and re.match(r"    \S.{25,}\d", line):
            figures = {name: line[end - 9 : end].strip() for name, end in columns}
            rows[line[4 : columns[0][1] - 9].strip()] = {
                name: float(figure.replace(",", "")) for name, figure in figures.items() if figure
            }
    return tables


def place(factor):
    share = math.log(factor / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + share * (WIDTH - LEFT - 20), 1)


def draw(tables):
    parts, y = [], TOP
    for title, rows in SHOWN.items():
        parts.append(f'<text x="10" y="{y}" font-weight="bold">{escape(title)}</text>')
        for row in rows:
            y += ROW
            figures = tables[title].get(row, {})
            parts.append(f'<text x="20" y="{y}">{escape(row)}</text>')
            parts.append(
                f'<line class="line" x1="{LEFT}" x2="{WIDTH - 20}" y1="{y - 4}" y2="{y - 4}"/>'
            )
            for name in reversed(NAMES):
                if name in figures:
                    factor = min(max(figures[name] / figures["webapp"], LEAST), MOST)
                    parts.append(
                        f'<circle class="{name}" cx="{place(factor)}" cy="{y - 4}" r="5">'
                        f"<title>{name}: {figures[name]:,}</title></circle>"
                    )
        y += 2 * ROW
    height = y
    for factor in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64):
        kind = "one" if factor == 1 else "line"
        parts.insert(
            0,
            f'<line class="{kind}" x1="{place(factor)}" x2="{place(factor)}" y1="{TOP - 14}" '
            f'y2="{height - 30}"/><text class="small" text-anchor="middle" x="{place(factor)}" '
            f'y="{height - 14}">{factor:g} ×</text>',
        )
    for number, name in enumerate(NAMES):
        x = 20 + 110 * number
        label = "webapp.py" if name == "webapp" else name
        parts.append(f'<circle class="{name}" cx="{x}" cy="20" r="5"/>')
        parts.append(f'<text x="{x + 10}" y="24">{label}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n<title>Processor time of a request, '
        f"webapp.py = 1</title>\n<style>{STYLE}</style>\n"
        f'<rect class="back" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def summary(tables):
    """Return the table of README.rst: what others need, where webapp.py needs 1."""
    rows = {row: figures for table in tables.values() for row, figures in table.items()}
    rule = "=" * 36 + "  ========" * len(NAMES[1:])
    lines = [rule, f"{'work':36}" + "".join(f"{name.capitalize():>10}" for name in NAMES[1:]), rule]
    for row, title, names in CHOSEN:
        factors = {name: rows[row][name] / rows[row]["webapp"] for name in names}
        cells = [f"{factors[name]:.1f}" if name in factors else "" for name in NAMES[1:]]
        lines.append((f"{title:36}" + "".join(f"{cell:>10}" for cell in cells)).rstrip())
    return "\n".join([*lines, rule])


def describe_run():
    """Say when and where the figures were measured, and with what."""
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    versions = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("bottle", "falcon", "flask", "jinja2", "waitress", "cheroot", "uwsgi")
    ]
    text = (
        f"Measured on {datetime.date.today():%d %B %Y} on a virtual machine with "
        f"{os.cpu_count()} cores ({cpu[1] if cpu else 'of an unknown kind'}), with "
        f"{', '.join(versions[:-1])} and {versions[-1]}. During the last fifteen minutes, on "
        f"average {os.getloadavg()[2]:.0f} processes were running or waiting for a core."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False)


def put_in(page, shown):
    """Put something else between the two comments of a page."""
    begin, end = ".. The figures begin here.\n", ".. The figures end here.\n"
    head, _, tail = page.read_text(encoding="utf-8").partition(begin)
    text = f"{head}{begin}\n{shown}\n\n{end}{tail.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main():
    if len(sys.argv) > 1:
        figures = Path(sys.argv[1]).read_text(encoding="utf-8").strip("\n")
        table = textwrap.indent(figures, "    ")
        put_in(PAGE, f"{describe_run()} The command prints this table::\n\n{table}")
    tables = read_tables(PAGE.read_text(encoding="utf-8"))
    PAGE.with_suffix(".svg").write_text(draw(tables), encoding="utf-8")
    put_in(README, summary(tables))


if __name__ == "__main__":
    main()
