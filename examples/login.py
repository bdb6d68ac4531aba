"""Logging in: a session, and passwords that are stored safely.

Start it with `python3 -m webapp examples/login.py` and open http://127.0.0.1:8000/. Log in with the
name "ada" and the password "notes on the engine".

    $ curl -i http://127.0.0.1:8000/
    HTTP/1.1 303 See Other
    Location: /login

    303 See Other
    $ curl http://127.0.0.1:8000/login
    ...<h1>Log in</h1>...
    $ curl -i -c jar -d user=ada --data-urlencode 'password=notes on the engine' \\
        http://127.0.0.1:8000/login
    HTTP/1.1 303 See Other
    Location: /
    Set-Cookie: session=...; Max-Age=1209600; Path=/; HttpOnly; SameSite=Lax

    303 See Other
    $ curl -i -b jar http://127.0.0.1:8000/
    HTTP/1.1 200 OK
    Cache-Control: no-store

    ...<p>You are logged in as ada...

A wrong password makes the validation fail. The page does not reveal whether the name exists, and it
does not contain the password.

    $ curl -i -d user=ada -d password=guess http://127.0.0.1:8000/login
    HTTP/1.1 422 Unprocessable Content
    Content-Type: text/html; charset=UTF-8

    ...<p class="error" role="alert">There is nobody of that name with that password...

Every request that changes something is a POST, including the logout. A POST from the page of
another site (CSRF) is answered with 403 automatically:

    $ curl -b jar -X POST -H 'Origin: https://evil.example' http://127.0.0.1:8000/logout
    403 Forbidden
    $ curl -b jar http://127.0.0.1:8000/logout
    405 Method Not Allowed
    $ curl -i -b jar -c jar -X POST http://127.0.0.1:8000/logout
    HTTP/1.1 303 See Other
    Location: /login

    303 See Other
    $ curl -b jar http://127.0.0.1:8000/
    303 See Other

After a logout, the browser's "Back" button must not show the page again. Two things prevent that.
The header field "Cache-Control: no-store" keeps the page out of the cache. But some browsers also
keep whole pages in memory (the back/forward cache) in spite of "no-store", so a script in the page
reloads it when it comes from there.
"""

# search words: password hash, scrypt, bcrypt, register, user account, sign in, logout,
#   authentication

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from webapp import Markup, ValidationExecutor, WebApp

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
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
<script>addEventListener("pageshow", (event) => event.persisted && location.reload())</script>
</body>
</html>
"""
)
PROBLEM = Markup('<p class="error" role="alert">There is nobody of that name with that password.')


COST = int(os.environ.get("SCRYPT_COST", 2**14))  # 16 MiB and 0.2 s for each guess; tests take less


def hashed(password, salt):
    return hashlib.scrypt(password.encode(), salt=salt, n=COST, r=8, p=5)


def add_user(name, password):
    salt = secrets.token_bytes(16)
    users[name] = salt, hashed(password, salt)


users = {}  # name to salt and hash; a real program would keep them in a database
add_user("ada", "notes on the engine")
# Checking this takes as long as checking a wrong password, so the time does not tell who is a user.
NOBODY = (
    secrets.token_bytes(16),
    b"",
)

# A new key ends all sessions.
app = WebApp(secret_key=os.environ.get("SECRET_KEY") or secrets.token_bytes())
app.static("/static", Path(__file__).parent / "static")


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
    context.session.clear()  # deletes the cookie; a copy of it would work until it expires
    context.response.redirect("/login")


with app.path("/") as members:

    @members.before
    def members_only(context):
        if context.session.get("user") not in users:
            return context.response.redirect("/login")
        # Otherwise the cache of the browser would show the page after a logout.
        context.response.header("Cache-Control", "no-store")

    @members.get("")
    def account(context):
        context.response.html(ACCOUNT, title="Your account", user=context.session["user"])
