"""Error hooks: scopes, the order in which their hooks run, and a hook that fails.

Start it with `python3 -m webapp examples/hooks.py`. The terminal shows what is logged.

An error hook belongs to the scope in which it is written. If something fails in a scope, the hooks
run from the innermost scope outwards. Here, the hook of the shop builds a body, and then the hook
of the application adds a header.

    $ curl -i http://127.0.0.1:8000/shop/tea
    HTTP/1.1 409 Conflict
    Content-Type: application/json
    X-Failed: HttpException

    {"shop": "Sorry: 409"}

A path without a route does not belong to any scope. So only the hook of the application runs:

    $ curl -i http://127.0.0.1:8000/shop/nowhere
    HTTP/1.1 404 Not Found
    X-Failed: NotFoundException

    404 Not Found

The hook of the till fails. Its failure is logged, and the hook of the next scope outwards runs as
if nothing had happened.

    $ curl -i http://127.0.0.1:8000/shop/till/receipt
    HTTP/1.1 500 Internal Server Error
    X-Failed: ZeroDivisionError

    {"shop": "Sorry: 500"}

The hook of the door returns a value, and thereby sends it. A response that was sent is final, so no
hook outside of the door runs:

    $ curl -i http://127.0.0.1:8000/shop/door/bell
    HTTP/1.1 503 Service Unavailable
    Content-Type: text/plain; charset=UTF-8

    Knock, please.

What a failed handler has done is undone, so its cookie is gone. The header of the before hook
stays, because that hook did not fail.

    $ curl -i http://127.0.0.1:8000/shop/cake
    HTTP/1.1 500 Internal Server Error
    X-Shop: open
    X-Failed: RuntimeError

    {"shop": "Sorry: 500"}
"""

# search words: errorhandler, before_request, after_request

from webapp import HttpException, WebApp

app = WebApp()


@app.error
def name_the_failure(context, cause, status_code):
    context.response.header("X-Failed", type(cause).__name__)


with app.path("/shop") as shop:

    @shop.before
    def open_shop(context):
        context.response.header("X-Shop", "open")

    @shop.error
    def apologise(context, cause, status_code):
        context.response.json("shop", f"Sorry: {status_code}")

    @shop.get("/tea")
    def tea(context):
        raise HttpException(409, "no tea left")

    @shop.get("/cake")
    def cake(context):
        context.response.cookie("ordered", "cake")
        raise RuntimeError("the oven is broken")

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
