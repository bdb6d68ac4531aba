"""CORS: pages of listed origins may use a JSON API, with cookies if needed.

You can copy the function `cors()` into your program. It returns two hooks: an `error` hook for the
application, which answers preflights, and an `after` hook for any scope. Start the lesson with
`python3 -m webapp examples/cors.py`, and send the requests that a browser sends for a page of
https://shop.example:

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

A page from any other origin gets the same responses without these headers, so the browser does not
let the page read them. A page from a listed origin can also read the errors of the scope:

    $ curl -i -H 'Origin: https://shop.example' http://127.0.0.1:8000/api/prices/gold
    HTTP/1.1 404 Not Found
    Vary: Origin, Accept
    Access-Control-Allow-Origin: https://shop.example

    404 Not Found

CORS does not keep anybody out: it only allows what browsers would otherwise forbid. To protect your
data, use a login. A PUT from the page of another origin is answered with 403 automatically, so pass
the same list as `trusted_origins` to allow listed pages to send one:

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
    """Return an `error` hook for preflights, and an `after` hook that lets pages of `origins` read
    the responses.

    Write an origin as browsers send it: the scheme, the host, and the port unless it is the default
    one, without a slash at the end. `headers` are the request headers that scripts may set.
    `max_age` is the number of seconds for which a browser remembers the response to a preflight."""

    def allow_origin(context):
        response, origin = context.response, context.request.headers.get("Origin")
        # On every response, so that a cache keeps one for each origin, and one without an origin.
        response.add_header("Vary", "Origin")
        if origin in origins:
            response.header("Access-Control-Allow-Origin", origin)
            if credentials:
                response.header("Access-Control-Allow-Credentials", "true")

    def preflight(context, cause, status_code):
        # A preflight is an OPTIONS request for a path that has only other methods. An unknown path
        # is still answered with 404.
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

# This hook belongs to the application, because a preflight has no route. So a preflight, which
# carries no cookies, meets no `before` hook that wants a login.
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
