"""A script that does its own work, and serves a small page that shows how far it has come.

Start it with `python3 -m examples.embed`. The script searches for prime numbers. The page at
http://127.0.0.1:8000/ shows the progress, and has a button that ends the search early.

    $ curl http://127.0.0.1:8000/status
    {"tried": ..., "found": ..., "largest": ...}
    $ curl -X POST http://127.0.0.1:8000/stop
    Stopped.

The server answers in its own threads. The search stays in the main thread, knows nothing about the
web, and shares one object with the server. (In live.py the server pushes the progress to the page;
here the page has to ask for it.)
"""

# search words: GUI for a script, thread, background server, status page

import threading
from itertools import takewhile
from pathlib import Path

from webapp import Server, WebApp

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Primes: {tried:,} of {limit:,}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
</head>
<body>
<h1>Primes</h1>
<p><label for="progress">{tried:,} of {limit:,} numbers tried</label>
<progress id="progress" max="{limit}" value="{tried}"></progress>
<p>{found:,} primes found, the largest is {largest:,}.
<p><a href="/">Look again</a>
<form method="post" action="/stop"><button>Stop here</button></form>
</body>
</html>
"""


class Search:
    """The work of the script: find the primes below `limit`."""

    def __init__(self, limit):
        self.limit = limit
        self.tried = 2
        self.primes = [2]
        self.stop = threading.Event()

    def run(self):
        for number in range(3, self.limit):
            if self.stop.is_set():
                break
            if self.is_prime(number):
                self.primes.append(number)
            self.tried = number

    def is_prime(self, number):
        return all(
            number % prime
            for prime in takewhile(lambda prime: prime * prime <= number, self.primes)
        )

    def status(self):
        return {"tried": self.tried, "found": len(self.primes), "largest": self.primes[-1]}


def make_app(search):
    """Make the application that shows a search."""
    app = WebApp()
    app.static("/static", Path(__file__).parent / "static")

    @app.after
    def keep_out_of_frames(context):
        # Another site could show this page in a frame that nobody sees (clickjacking).
        context.response.header("X-Frame-Options", "SAMEORIGIN")
        context.response.header("Cross-Origin-Resource-Policy", "same-origin")

    @app.get("/")
    def page(context):
        context.response.html(PAGE, limit=search.limit, **search.status())

    @app.get("/status")
    def status(context):
        return search.status()

    @app.post("/stop")
    def stop(context):
        search.stop.set()
        return "Stopped."  # a redirect would lead to a server that is gone

    return app


def main(limit=10_000_000, port=8000):
    search = Search(limit)
    with Server(make_app(search), port=port, quiet=True) as server:
        print(f"Watch it at {server.url}")
        search.run()
    print(f"{len(search.primes):,} primes up to {search.tried:,}")


if __name__ == "__main__":
    main()
