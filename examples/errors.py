"""Errors: whatever goes wrong, which hooks run, and what the client gets to see.

Start it with `python3 examples/errors.py` and open http://127.0.0.1:8000/, or try what is shown here. The terminal in
which it runs shows what is logged. A page, for a start:

    $ curl -i http://127.0.0.1:8000/
    HTTP/1.1 200 OK
    Content-Type: text/html; charset=UTF-8

    <!DOCTYPE html>...</html>

No such path is a 404, no such method a 405 with Allow; both as text, or as JSON for who asks for it. No route was
chosen, so only the hooks of the outermost block run: here the one that writes X-Failed.

    $ curl -i http://127.0.0.1:8000/nowhere
    HTTP/1.1 404 Not Found
    Content-Type: text/plain; charset=UTF-8
    X-Failed: NotFoundException

    404 Not Found
    $ curl -H 'Accept: application/json' http://127.0.0.1:8000/shop/nowhere
    {"error": {"status": 404, "message": "Not Found"}}
    $ curl -i -X DELETE http://127.0.0.1:8000/shop/tea
    HTTP/1.1 405 Method Not Allowed
    Allow: GET, HEAD
    X-Failed: MethodNotAllowedException

    405 Method Not Allowed
    $ curl -X DELETE -H 'Accept: application/json' http://127.0.0.1:8000/shop/tea
    {"error": {"status": 405, "message": "Method Not Allowed"}}

An exception is a 500 that says nothing. Its text and the stack trace are in the log.

    $ curl http://127.0.0.1:8000/crash
    500 Internal Server Error

An exception type of our own has a status of its own. The inner hook, that of the shop, builds a body; the outer one
still runs and adds its header; then the response is sent.

    $ curl -i http://127.0.0.1:8000/shop/tea
    HTTP/1.1 409 Conflict
    Content-Type: application/json
    X-Failed: SoldOut

    {"shop": "Sorry, no tea left."}

The innermost hook of the till fails. That is logged, and the next one outward runs as if nothing had happened.

    $ curl -i http://127.0.0.1:8000/shop/till/receipt
    HTTP/1.1 500 Internal Server Error
    X-Failed: ZeroDivisionError

    {"shop": "Sorry, something broke."}

The hook of the door sends, which is what returning a value means: no hook outside of it runs.

    $ curl http://127.0.0.1:8000/shop/door/bell
    Knock, please.

Input that is not valid is no exception and reaches no hook: it is a 422 that gives the form back.

    $ curl -i -d item= -d amount=2 http://127.0.0.1:8000/orders
    HTTP/1.1 422 Unprocessable Content
    Content-Type: application/json

    {"item": "", "amount": "2", "validation": {"item": ["What would you like?"]}}
    $ curl -d item=tea -d amount=2 http://127.0.0.1:8000/orders
    2 tea, coming up
"""

import sys
from pathlib import Path

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from webapp import HttpException, ValidationExecutor, WebApp

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Errors</title>
<style>
:root { color-scheme: light dark; font: 1.1rem/1.6 sans-serif }
body { max-width: 36rem; margin: auto; padding: 1rem }
input, button { font: inherit; max-width: 100% }
</style>
</head>
<body>
<h1>Errors</h1>
<ul>
<li><a href="/nowhere">A page that is not there</a>
<li><a href="/crash">A handler that crashes</a>
<li><a href="/shop/tea">An exception with a status of its own, an inner and an outer hook</a>
<li><a href="/shop/till/receipt">A hook that fails</a>
<li><a href="/shop/door/bell">A hook that sends</a>
</ul>
<h2>A form to leave empty</h2>
<form method="post" action="/orders">
<p><label for="item">Item</label><br><input id="item" name="item">
<p><label for="amount">Amount</label><br><input id="amount" name="amount" value="1" inputmode="numeric">
<p><button>Order</button>
</form>
</body>
</html>
"""


class SoldOut(Exception):
    """Has nothing to do with HTTP: what it means there is the application's decision, below."""


class Shop(WebApp):
    def resolve_status_code(self, cause):
        return 409 if isinstance(cause, SoldOut) else super().resolve_status_code(cause)


app = Shop()


@app.error
def name_the_failure(context, cause, status_code):
    context.response.header("X-Failed", type(cause).__name__)


@app.get("/")
def page(context):
    context.response.html(PAGE)


@app.get("/crash")
def crash(context):
    raise RuntimeError("the password of the database is 1234")


class OrderForm(ValidationExecutor):
    def validate(self, context):
        if not context.request.form.get("item"):
            self.add_error("item", "What would you like?")


@app.post("/orders", OrderForm)
def order(context):
    form = context.request.form
    return f"{form.get('amount', 1)} {form['item']}, coming up"


with app.path("/shop") as shop:

    @shop.error
    def apologise(context, cause, status_code):
        # Of our own exceptions we know that the text is meant to be read; of others nobody does.
        text = str(cause) if isinstance(cause, SoldOut) else "something broke."
        context.response.json("shop", f"Sorry, {text}")

    @shop.get("/tea")
    def tea(context):
        raise SoldOut("no tea left.")

    with shop.path("/till") as till:

        @till.error
        def print_apology(context, cause, status_code):
            raise OSError("out of paper")

        @till.get("/receipt")
        def receipt(context):
            return f"{10 / 0} each"

    with shop.path("/door") as door:

        @door.error
        def put_up_a_note(context, cause, status_code):
            return "Knock, please."

        @door.get("/bell")
        def bell(context):
            raise HttpException(503, "no current")


if __name__ == "__main__":
    app.run(port=8000)
