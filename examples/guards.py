"""Guards: `before` hooks that let a request pass, or answer it themselves.

Start it with `python3 -m webapp examples/guards.py`. To keep it short, this lesson uses a token
instead of a login. (login.py has passwords.)

When a guard has answered, the handler does not run. A guard can answer in five ways. A guard that
protects pages usually returns a redirect:

    $ curl -i http://127.0.0.1:8000/pages/account
    HTTP/1.1 303 See Other
    Location: /login

    303 See Other

If the clients are programs, a guard usually raises an exception. The headers of the exception go to
the client, and error hooks run:

    $ curl -i http://127.0.0.1:8000/api/account
    HTTP/1.1 401 Unauthorized
    WWW-Authenticate: Bearer

    401 Unauthorized

A guard can also return a value, which is sent, or set a status of 300 or more:

    $ curl http://127.0.0.1:8000/closed/account
    Closed until Monday.
    $ curl -i http://127.0.0.1:8000/gone/account
    HTTP/1.1 410 Gone

Finally, it can build a page, with or without `return`:

    $ curl http://127.0.0.1:8000/tired/account
    ...<h1>Come back tomorrow</h1>

If the `return` is missing, you may wonder why the handler does not run. So the server's line for
this request ends with `answered by the before hook send_away` and the place of the hook. A guard
that does none of this lets the request pass. It may still set headers and cookies, and add members
to a JSON document.

    $ curl -i -H 'Authorization: Bearer secret' http://127.0.0.1:8000/pages/account
    HTTP/1.1 200 OK
    Cache-Control: no-store

    the account
    $ curl -H 'Authorization: Bearer secret' http://127.0.0.1:8000/api/account
    {"account": "Ada"}

A guard protects the routes of its scope, however the client writes their paths. It does not protect
the routes of another scope:

    $ curl http://127.0.0.1:8000//pages//account/
    303 See Other
    $ curl http://127.0.0.1:8000/login
    Say who you are.
"""

# search words: login_required, access control, authorization, early return

from hmac import compare_digest

from webapp import HttpException, WebApp

TOMORROW = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Come back tomorrow</title>
<h1>Come back tomorrow</h1>
"""

app = WebApp()


def is_known(context):
    given = context.request.headers.get("Authorization", "")
    return compare_digest(given.encode(), b"Bearer secret")


@app.get("/login")
def login(context):
    return "Say who you are."


with app.path("/pages") as pages:

    @pages.before
    def to_login(context):
        if not is_known(context):
            return context.response.redirect("/login")
        context.response.header("Cache-Control", "no-store")

    @pages.get("/account")
    def account_page(context):
        return "the account"


with app.path("/api") as api:

    @api.before
    def refuse(context):
        if not is_known(context):
            raise HttpException(401, headers={"WWW-Authenticate": "Bearer"})

    @api.get("/account")
    def account(context):
        return {"account": "Ada"}


with app.path("/closed") as closed:

    @closed.before
    def close(context):
        return "Closed until Monday."

    closed.get("/account", account)

with app.path("/gone") as gone:

    @gone.before
    def say_that_it_is_gone(context):
        context.response.code(410)

    gone.get("/account", account)

with app.path("/tired") as tired:

    @tired.before
    def send_away(context):
        context.response.html(TOMORROW)

    tired.get("/account", account)
