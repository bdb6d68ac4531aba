"""Logging in: a session, passwords that are stored well, and a block of routes for members only.

Start it with `python3 examples/login.py` and open http://127.0.0.1:8000/; "ada" may log in with "notes on the engine".

The same `before` hook guards two blocks. In one of them an error hook makes of a 401 what a person wants, a way to the
login page; in the other, which is for programs, it stays what it is.

    $ curl -i http://127.0.0.1:8000/
    HTTP/1.1 303 See Other
    Location: /login

    303 See Other
    $ curl http://127.0.0.1:8000/login
    ...<h1>Log in</h1>...
    $ curl http://127.0.0.1:8000/api/me
    401 Unauthorized
    $ curl -i -c jar -d user=ada --data-urlencode 'password=notes on the engine' http://127.0.0.1:8000/login
    HTTP/1.1 303 See Other
    Location: /
    Set-Cookie: session=...; Max-Age=1209600; Path=/; HttpOnly; SameSite=Lax

    303 See Other
    $ curl -b jar http://127.0.0.1:8000/api/me
    {"user": "ada"}
    $ curl -i -b jar http://127.0.0.1:8000/
    HTTP/1.1 200 OK
    Cache-Control: no-store

    ...<p>You are logged in as ada...
    $ curl -i -d user=ada -d password=guess http://127.0.0.1:8000/login
    HTTP/1.1 422 Unprocessable Content
    Content-Type: text/html; charset=UTF-8

    ...<p class="error" role="alert">There is nobody of that name with that password...

Everything that changes something is a POST, logging out included, and a POST from another site's page is refused:

    $ curl -b jar -X POST -H 'Origin: https://evil.example' http://127.0.0.1:8000/logout
    403 Forbidden
    $ curl -b jar http://127.0.0.1:8000/logout
    405 Method Not Allowed
    $ curl -i -b jar -c jar -X POST http://127.0.0.1:8000/logout
    HTTP/1.1 303 See Other
    Location: /login

    303 See Other
    $ curl -i -b jar http://127.0.0.1:8000/api/me
    HTTP/1.1 401 Unauthorized
    WWW-Authenticate: Session realm="members"

    401 Unauthorized
"""

import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path

# Finds webapp.py in the folder above; where it is installed, or lies beside your program, leave this out.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from webapp import HttpException, Markup, ValidationExecutor, WebApp, same_origin

# In a template for values, braces of CSS are doubled.
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 1.1rem/1.6 sans-serif }}
body {{ max-width: 24rem; margin: auto; padding: 1rem; overflow-wrap: anywhere }}
input {{ display: block; box-sizing: border-box; width: 100% }}
input, button {{ font: inherit }}
.error {{ color: light-dark(#b00020, #ff8a80); font-weight: bold }}
</style>
</head>
<body>
<h1>{title}</h1>
"""
LOGIN = (
    HEAD
    + """{problem}
<form method="post" action="/login">
<p><label for="user">Name</label>
<input id="user" name="user" value="{user}" required autocomplete="username" autocapitalize="none">
<p><label for="password">Password</label>
<input id="password" name="password" type="password" required autocomplete="current-password">
<p><button>Log in</button>
</form>
</body>
</html>
"""
)
ACCOUNT = (
    HEAD
    + """<p>You are logged in as {user}.
<form method="post" action="/logout"><button>Log out</button></form>
</body>
</html>
"""
)
PROBLEM = Markup('<p class="error" role="alert">There is nobody of that name with that password.')


def hashed(password, salt):
    return hashlib.scrypt(password.encode(), salt=salt, n=2**14, r=8, p=5)  # 16 MiB and 0.2 s for every guess


def add_user(name, password):
    salt = secrets.token_bytes(16)
    users[name] = salt, hashed(password, salt)


users = {}  # name to salt and hash; more than an example would keep them in a database
add_user("ada", "notes on the engine")
NOBODY = secrets.token_bytes(16), b""  # takes as long as a wrong password does, so that no clock tells who is a user

app = WebApp(secret_key=os.environ.get("SECRET_KEY") or secrets.token_bytes())  # a new key ends all sessions
app.before(same_origin)


class Credentials(ValidationExecutor):
    def validate(self, context):
        form = context.request.form
        salt, expected = users.get(form["user"], NOBODY)
        if not hmac.compare_digest(hashed(form["password"], salt), expected):
            self.add_error("password", "wrong")

    def on_cancel(self, context):
        user = context.request.form["user"]
        context.response.html(LOGIN, title="Error: Log in", user=user, problem=PROBLEM)


@app.get("/login")
def login_page(context):
    context.response.html(LOGIN, title="Log in", user="", problem="")


@app.post("/login", Credentials)
def log_in(context):
    context.session.clear()
    context.session["user"] = context.request.form["user"]
    context.response.redirect("/")


@app.post("/logout")
def log_out(context):
    context.session.clear()  # the cookie goes; a copy that somebody made of it would be good until it expires
    context.response.redirect("/login")


def members_only(context):
    if context.session.get("user") not in users:
        raise HttpException(401, headers={"WWW-Authenticate": 'Session realm="members"'})
    context.response.header("Cache-Control", "no-store")  # or "Back" would show the page after a logout


with app.path("/") as pages:
    pages.before(members_only)

    @pages.error
    def to_login(context, cause, status_code):
        if status_code == 401:
            context.response.redirect("/login")

    @pages.get("")
    def account(context):
        context.response.html(ACCOUNT, title="Your account", user=context.session["user"])


with app.path("/api") as api:
    api.before(members_only)

    @api.get("/me")
    def me(context):
        return {"user": context.session["user"]}


if __name__ == "__main__":
    app.run(port=8000)
