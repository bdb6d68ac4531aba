"""Errors: which status an exception gets, what the client sees of it, and what the log says.

Start it with `python3 -m webapp examples/errors.py`. The terminal shows what is logged.

An unknown path is answered with 404. If the path is known but has no route for the method, the
response is a 405 with an Allow header. The body is one line of text, or JSON if the client asks for
it.

    $ curl -i http://127.0.0.1:8000/nowhere
    HTTP/1.1 404 Not Found
    Content-Type: text/plain; charset=UTF-8

    404 Not Found
    $ curl -H 'Accept: application/json' http://127.0.0.1:8000/nowhere
    {"error": {"status": 404, "message": "Not Found"}}
    $ curl -i -X DELETE http://127.0.0.1:8000/tea
    HTTP/1.1 405 Method Not Allowed
    Allow: GET, HEAD

    405 Method Not Allowed

An exception is answered with a 500 that reveals nothing. Its message and the stack trace are in the
log.

    $ curl http://127.0.0.1:8000/crash
    500 Internal Server Error

An HttpException has a status. Its message goes to the log, and its headers go to the client.

    $ curl -i http://127.0.0.1:8000/oven
    HTTP/1.1 503 Service Unavailable
    Retry-After: 60

    503 Service Unavailable

An application can choose a status for its own exceptions in resolve_status_code, and an error hook
can build the body.

    $ curl -i http://127.0.0.1:8000/tea
    HTTP/1.1 409 Conflict
    Content-Type: text/plain; charset=UTF-8

    Sorry, no tea left.

Missing or malformed input is answered with 400. The log names the field.

    $ curl 'http://127.0.0.1:8000/add?a=1'
    400 Bad Request
    $ curl 'http://127.0.0.1:8000/add?a=1&b=two'
    400 Bad Request

If a ValidationExecutor refuses the input, no exception is raised and no error hook runs. The
response is a 422 that repeats the form.

    $ curl -i -d item= -d amount=2 http://127.0.0.1:8000/orders
    HTTP/1.1 422 Unprocessable Content
    Content-Type: application/json

    {"item": "", "amount": "2", "validation": {"item": ["What would you like?"]}}
    $ curl -d item=tea -d amount=2 http://127.0.0.1:8000/orders
    2 tea, coming up
"""

# search words: abort, 404, 500, error page, errorhandler, public message

from webapp import HttpException, ValidationExecutor, WebApp


class SoldOut(Exception):
    """An exception of the application, which knows nothing about HTTP."""


class Shop(WebApp):
    def resolve_status_code(self, cause):
        return 409 if isinstance(cause, SoldOut) else super().resolve_status_code(cause)


app = Shop()


@app.error
def apologise(context, cause, status_code):
    # Show only the text of our own exceptions. Others may contain secrets.
    if isinstance(cause, SoldOut):
        context.response.text(f"Sorry, {cause}")


@app.get("/crash")
def crash(context):
    raise RuntimeError("the password of the database is 1234")


@app.get("/oven")
def oven(context):
    raise HttpException(503, "the oven is cold", headers={"Retry-After": "60"})


@app.get("/tea")
def tea(context):
    raise SoldOut("no tea left.")


@app.get("/add")
def add(context):
    query = context.request.query
    return str(query.parse("a", int) + query.parse("b", int))


class OrderForm(ValidationExecutor):
    def validate(self, context):
        if not context.request.form.get("item"):
            self.add_error("item", "What would you like?")


@app.post("/orders", OrderForm)
def order(context):
    form = context.request.form
    return f"{form.get('amount', 1)} {form['item']}, coming up"
