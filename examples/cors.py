"""CORS: pages of listed origins may use a JSON API, with cookies if needed.

Copy `cors()` into a program: it gives an `error` hook of the application, which answers
preflights, and an `after` hook for any block of routes. Start it with
`python3 -m webapp examples/cors.py`, and be a browser that shows a page of https://shop.example:

    $ curl -i -H 'Origin: https://shop.example' http://127.0.0.1:8000/api/prices
    HTTP/1.1 200 OK
    Vary: Origin
    Access-Control-Allow-Origin: https://shop.example
    Access-Control-Allow-Credentials: true

    {"tea": 3, "cake": 4}
    $ curl -i -X OPTIONS -H 'Origin: https://shop.example' \\
        -H 'Access-Control-Request-Method: PUT' http://127.0.0.1:8000/api/prices/tea
    HTTP/1.1 204 No Content
    Access-Control-Allow-Origin: https://shop.example
    Access-Control-Allow-Methods: GET, HEAD, PUT
    Access-Control-Allow-Headers: Content-Type
    Access-Control-Max-Age: 600

A page of any other origin gets the same answers without these headers, and its browser does not let
it read them. A page of a listed origin can read errors of the block, too:

    $ curl -i -H 'Origin: https://shop.example' http://127.0.0.1:8000/api/prices/gold
    HTTP/1.1 404 Not Found
    Vary: Origin, Accept
    Access-Control-Allow-Origin: https://shop.example

    404 Not Found

CORS only allows what browsers forbid, and keeps nobody out: use a login. A PUT from the page of
another origin is a 403 by itself. `trusted_origins` has the same list, so that listed pages may
send one:

    $ curl -H 'Origin: https://shop.example' -H 'Content-Type: application/json' \\
        -X PUT -d 5 http://127.0.0.1:8000/api/prices/tea
    {"tea": 5, "cake": 4}
    $ curl -H 'Origin: https://evil.example' -H 'Content-Type: application/json' \\
        -X PUT -d 0 http://127.0.0.1:8000/api/prices/tea
    403 Forbidden
"""

# search words: Access-Control-Allow-Origin, preflight, OPTIONS, cross-origin, another domain,
#   blocked by CORS policy

from webapp import MethodNotAllowedException, NotFoundException, WebApp


def cors(*origins, headers=("Content-Type",), credentials=False, max_age=600):
    """Return an `error` hook for preflights and an `after` hook that let pages of `origins` read
    the answers.

    An origin is written as browsers send it: scheme, host, port unless it is the usual one, no
    slash at the end. `headers` are the request headers that scripts may set, `max_age` the seconds
    for which a preflight holds."""

    def allow_origin(context):
        response, origin = context.response, context.request.headers.get("Origin")
        # For every answer: a cache keeps one for each origin, and one without.
        response.add_header("Vary", "Origin")
        if origin in origins:
            response.header("Access-Control-Allow-Origin", origin)
            if credentials:
                response.header("Access-Control-Allow-Credentials", "true")

    def preflight(context, cause, status_code):
        # A preflight is an OPTIONS for a path that has other methods only. An unknown path stays
        # a 404.
        if context.request.method != "OPTIONS" or not isinstance(cause, MethodNotAllowedException):
            return
        allow_origin(context)
        response = context.response
        if context.request.headers.get("Origin") in origins:
            response.header("Access-Control-Allow-Methods", ", ".join(cause.allow))
            response.header("Access-Control-Allow-Headers", ", ".join(headers))
            response.header("Access-Control-Max-Age", str(max_age))
        response.code(204).send()

    return preflight, allow_origin


ORIGINS = ["https://shop.example", "http://localhost:3000"]
app = WebApp(trusted_origins=ORIGINS)
preflight, allow_origin = cors(*ORIGINS, credentials=True)
prices = {"tea": 3, "cake": 4}

# Of the application, because no route was chosen. So no `before` hook that wants a login sees a
# preflight, which carries no cookies.
app.error(preflight)

with app.path("/api") as api:
    api.after(allow_origin)

    @api.get("/prices")
    def list_prices(context):
        return prices

    @api.put("/prices/{name}")
    def set_price(context, name):
        prices[name] = context.request.json
        return prices

    @api.get("/prices/{name}")
    def price(context, name):
        if name not in prices:
            raise NotFoundException(f"no price for {name!r}")
        return {name: prices[name]}
