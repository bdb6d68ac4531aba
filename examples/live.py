"""A long-running script that shows its progress live in a browser, with server-sent events.

Start it with `python3 -m examples.live` and open http://127.0.0.1:8000/.

The script searches for Mersenne primes in a thread of its own. That thread knows nothing about the
web: it changes an object and notifies a condition. Each open page has a stream of events that waits
for the condition. Without JavaScript, the page reloads itself until the work is done. Near the end
of the search, the stream looks like this:

    $ curl -N http://127.0.0.1:8000/events
    data: {"tested": 428, "total": 429, "found": [3, 5, 7, 13, 17, 19, 31, ...], "done": false}

    data: {"tested": 429, "total": 429, "found": [3, 5, 7, 13, 17, 19, 31, ...], "done": true}
"""

# search words: SSE, EventSource, real time, push, WebSocket, progress bar, streaming

import threading
from pathlib import Path

from webapp import Markup, WebApp

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Mersenne primes</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
{reload}
<script src="/live.js" defer></script>
</head>
<body>
<h1>Mersenne primes</h1>
<p><label for="bar">Exponents tested: <span id="tested">{tested}</span> of {total}</label>
<progress id="bar" value="{tested}" max="{total}"></progress>
<p>2<sup>p</sup>&nbsp;&minus;&nbsp;1 is prime for p = <span id="found">{found}</span>
<p id="state" role="status">{state}
</body>
</html>
"""

SCRIPT = """
const events = new EventSource("/events");
const show = (id, text) => { document.getElementById(id).textContent = text; };
events.onmessage = (event) => {
  const search = JSON.parse(event.data);
  document.getElementById("bar").value = search.tested;
  show("tested", search.tested);
  show("found", search.found.join(", "));
  if (search.done) { show("state", "Done."); events.close(); }
};
events.onopen = () => show("state", "Searching");
events.onerror = () => show("state", "The connection is lost; trying again");
"""


class Search:
    """Search for p such that 2**p - 1 is prime, with the test of Lucas and Lehmer."""

    def __init__(self, limit):
        self.exponents = [
            p for p in range(3, limit) if all(p % n for n in range(2, int(p**0.5) + 1))
        ]
        self.tested, self.found = 0, []
        self.changed = threading.Condition()

    def run(self):
        for p in self.exponents:
            mersenne, s = 2**p - 1, 4
            for _ in range(p - 2):
                s = (s * s - 2) % mersenne
            with self.changed:
                self.tested += 1
                self.found += [] if s else [p]
                self.changed.notify_all()

    def state(self):
        total = len(self.exponents)
        return {
            "tested": self.tested,
            "total": total,
            "found": list(self.found),
            "done": self.tested == total,
        }


app = WebApp()
app.static("/static", Path(__file__).parent / "static")
search = Search(limit=3000)


@app.after
def keep_out_of_frames(context):
    # Another site could show this page in a frame that nobody sees (clickjacking).
    context.response.header("X-Frame-Options", "SAMEORIGIN")
    context.response.header("Cross-Origin-Resource-Policy", "same-origin")


@app.get("/")
def page(context):
    state = search.state()
    reload = (
        ""
        if state["done"]
        else Markup('<noscript><meta http-equiv="refresh" content="2"></noscript>')
    )
    found = ", ".join(map(str, state["found"]))
    text = "Done." if state["done"] else "Searching"
    context.response.html(PAGE, **{**state, "found": found, "state": text, "reload": reload})


@app.get("/live.js")
def script(context):
    context.response.body(SCRIPT.encode(), "text/javascript; charset=UTF-8")


@app.get("/events")
def events(context):
    context.response.events(progress())


def progress():
    tested = -1
    while tested < len(search.exponents):
        with search.changed:
            news = search.changed.wait_for(lambda seen=tested: search.tested > seen, timeout=15)
            state = search.state()
        # Send a comment now and then: only a write tells the server that the browser has gone.
        yield {"data": state} if news else {"comment": "still there"}
        tested = state["tested"]


if __name__ == "__main__":
    threading.Thread(target=search.run, daemon=True).start()
    app.run(port=8000)
