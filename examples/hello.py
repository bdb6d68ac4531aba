"""The smallest application: a single page, served by nothing but Python.

Start it:

    $ python3 -m webapp examples/hello.py

Then open http://127.0.0.1:8000/ in a browser, or send requests from another terminal:

    $ curl http://127.0.0.1:8000/
    Hello world
    $ curl http://127.0.0.1:8000/hello/Ada
    Hello Ada
    $ curl -i http://127.0.0.1:8000/hello/Ada%20Lovelace
    HTTP/1.1 200 OK
    Content-Type: text/plain; charset=UTF-8

    Hello Ada Lovelace
    $ curl http://127.0.0.1:8000/bye
    404 Not Found
"""

# search words: hello world, minimal example, quickstart

from webapp import WebApp

app = WebApp()


@app.get("/")
@app.get("/hello/{name}")
def hello(context, name="world"):
    return f"Hello {name}"


if __name__ == "__main__":  # for a copy beside webapp.py, started as `python3 hello.py`
    app.run(port=8000)
