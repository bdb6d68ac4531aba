"""Return values: a handler returns what it wants to send, or builds the response step by step.

Start it with `python3 -m webapp examples/returns.py` and open http://127.0.0.1:8000/.

A value that a handler returns is sent at once. Its type determines the Content-Type:

    $ curl -i http://127.0.0.1:8000/text
    HTTP/1.1 200 OK
    Content-Type: text/plain; charset=UTF-8

    a < b
    $ curl -i http://127.0.0.1:8000/document
    HTTP/1.1 200 OK
    Content-Type: application/json

    {"name": "Ada", "born": 1815}
    $ curl http://127.0.0.1:8000/list
    [1, 2.5, null]
    $ curl -i http://127.0.0.1:8000/
    HTTP/1.1 200 OK
    Content-Type: text/html; charset=UTF-8

    ...<p>a &lt; b...
    $ curl -i http://127.0.0.1:8000/bytes
    HTTP/1.1 200 OK
    Content-Type: application/octet-stream
    Content-Length: 3

    abc
    $ curl http://127.0.0.1:8000/stream
    1
    2
    3

To set a status, a header or a cookie, call the methods of `context.response`. Each of them returns
the response, so you can chain the calls. The response is sent when the handler has ended. If a
handler neither builds nor returns anything, the client gets a 204 (No Content).

    $ curl -i http://127.0.0.1:8000/built
    HTTP/1.1 201 Created
    Content-Type: application/json
    Location: /document
    X-Colour: green

    {"id": 7}
    $ curl -i http://127.0.0.1:8000/both
    HTTP/1.1 202 Accepted
    Content-Type: text/plain; charset=UTF-8

    it is on its way
    $ curl -i http://127.0.0.1:8000/nothing
    HTTP/1.1 204 No Content

Returning any other type is a mistake: the client gets a 500, and the log names the function and
says what to return instead.

    $ curl http://127.0.0.1:8000/mistake
    500 Internal Server Error
"""

# search words: return JSON, dict, tuple, status code, jsonify, content type, HTML string, 201

from pathlib import Path

from webapp import Markup, WebApp

app = WebApp()
app.static("/static", Path(__file__).parent / "static")

PAGE = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Return values</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
</head>
<body>
<h1>Return values</h1>
<p>{}
</body>
</html>
""")


@app.get("/")
def page(context):
    return PAGE.format("a < b")  # Markup is HTML, and its format() escapes the values


@app.get("/text")
def text(context):
    return "a < b"


@app.get("/document")
def document(context):
    return {"name": "Ada", "born": 1815}


@app.get("/list")
def some_list(context):
    return [1, 2.5, None]


@app.get("/bytes")
def some_bytes(context):
    return b"abc"


@app.get("/stream")
def stream(context):
    return (f"{number}\n" for number in range(1, 4))


@app.get("/built")
def built(context):
    context.response.code(201).header("X-Colour", "green").header("Location", context.url(document))
    context.response.json({"id": 7})


@app.get("/both")
def both(context):
    context.response.code(202)
    return "it is on its way"


@app.get("/nothing")
def nothing(context):
    pass


@app.get("/mistake")
def mistake(context):
    return 42
