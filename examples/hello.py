"""The smallest application: one route, served by nothing but Python.

Start it:

    $ python3 examples/hello.py

Then open http://127.0.0.1:8000/hello/world in a browser, or ask from another terminal:

    $ curl http://127.0.0.1:8000/hello/Ada
    Hello Ada
    $ curl -i http://127.0.0.1:8000/hello/Ada%20Lovelace
    HTTP/1.1 200 OK
    Content-Type: text/plain; charset=UTF-8

    Hello Ada Lovelace
    $ curl http://127.0.0.1:8000/bye
    404 Not Found
"""

import sys
from pathlib import Path

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from webapp import WebApp

app = WebApp()


@app.get("/hello/{name}")
def hello(context, name):
    return f"Hello {name}"


if __name__ == "__main__":
    app.run(port=8000)
