"""Draw the picture of README.rst: what a visitor sees of a failure, and what you see.

    python .docs/terminals.py

It starts the program of README.rst, asks for a page that fails, and draws what both terminals show
into examples/manual/failure.svg. A test compares the picture with what the program prints today.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.rst"
PICTURE = ROOT / "examples" / "manual" / "failure.svg"
PAGE = "/price/cake"
# What differs from one run to the next, and what the picture shows in its place.
FOLDER, CLOCK, TOOK = "/home/ada/shop", "14:02:11", "0.9 ms"
WIDTH, LINE = 640, 18
STYLE = """
.back { fill: #0d1117; stroke: #3d444d }
.bar { fill: #21262d }
.title { font: 12px system-ui, sans-serif; fill: #9198a1 }
.line { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
.line { fill: #e6edf3; white-space: pre }
.typed { fill: #7ee787 }
.failed { fill: #ffa198 }
"""


def program():
    """Return the program of README.rst."""
    block = re.search(r"^\.\. code:: python\n\n((?:    .*\n|\n)+)", README.read_text("utf-8"), re.M)
    return textwrap.dedent(block[1]).strip() + "\n"


def outputs(folder, environ):
    """Serve the program from a folder; return the answer, and the lines that its terminal shows."""
    (folder / "shop.py").write_text(program(), "utf-8")
    command = [sys.executable, "-m", "webapp", "shop.py", "--port", "0"]
    options = {"cwd": folder, "env": environ, "stderr": subprocess.PIPE, "text": True}
    # No proxy that the environment may name is asked.
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen(command, **options) as process:
        try:
            address = re.search(r"serving on (\S+)", process.stderr.readline())[1]
            browser.open(address + PAGE, timeout=10).close()
        except urllib.error.HTTPError as failure:
            with failure:
                body = failure.read().decode()
        finally:
            process.terminate()
        printed = process.stderr.read()
    return body, neutral(printed, folder)


def neutral(text, folder):
    """Return the lines without what differs from run to run, or from one Python to another."""
    text = text.replace(str(folder), FOLDER)
    text = re.sub(r"^\d\d:\d\d:\d\d", CLOCK, text, flags=re.M)
    text = re.sub(r"[\d.]+ ms", TOOK, text)
    # Only some Pythons mark the part of the line that failed.
    return [line for line in text.splitlines() if line.strip(" ~^")]


def terminal(y, title, lines):
    height = 24 + LINE * len(lines) + 14
    parts = [
        f'<rect class="back" x="1" y="{y}" width="{WIDTH - 2}" height="{height}" rx="6"/>',
        f'<path class="bar" d="M1 {y + 24}v-18a6 6 0 0 1 6 -6h{WIDTH - 14}a6 6 0 0 1 6 6v18z"/>',
        f'<text class="title" x="12" y="{y + 16}">{escape(title)}</text>',
    ]
    for number, (kind, text) in enumerate(lines):
        bottom = y + 24 + LINE * (number + 1)
        parts.append(
            f'<text class="{kind}" x="12" y="{bottom}" xml:space="preserve">{escape(text)}</text>'
        )
    return parts, y + height


def draw(body, printed):
    typed = f"$ curl http://127.0.0.1:8000{PAGE}"
    visitor = [("line typed", typed)] + [("line", line) for line in body.splitlines()]
    place = next(number for number, line in enumerate(printed) if "prices[name]" in line)
    owner = [
        ("line failed" if number in (place - 1, place) or "KeyError" in line else "line", line)
        for number, line in enumerate(printed)
    ]
    above, y = terminal(1, "what your visitor sees", visitor)
    below, y = terminal(y + 10, "what you see", owner)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 1}" '
        f'width="{WIDTH}" height="{y + 1}">\n<style>{STYLE}</style>\n'
        + "\n".join(above + below)
        + "\n</svg>\n"
    )


def main():
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(*outputs(Path(folder).resolve(), environ)), "utf-8")


if __name__ == "__main__":
    main()
