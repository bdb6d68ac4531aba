"""A guestbook: a form that is validated and shown again with its input, sqlite3, and a session.

Start it with `python3 -m webapp examples/guestbook.py` and open http://127.0.0.1:8000/. The entries
are kept in guestbook.sqlite3 in the current directory, or in the file that the environment variable
GUESTBOOK names.

After a successful POST, the handler redirects the browser (303). Otherwise the browser would submit
the form again when the visitor reloads the page. The session is kept in a signed cookie. It carries
the thanks to the next page, and the visitor's name to all pages. Unless the environment variable
GUESTBOOK_KEY contains a key, the key is new at every start, which ends all sessions.

    $ curl -i -c jar -d name=Ada --data-urlencode 'message=What a <lovely> place!' \\
        http://127.0.0.1:8000/
    HTTP/1.1 303 See Other
    Location: /
    Set-Cookie: session=...; Max-Age=1209600; Path=/; HttpOnly; SameSite=Lax

    303 See Other
    $ curl -b jar -c jar http://127.0.0.1:8000/
    ...<p role="status">Thank you, Ada.</p>
    ...<input id="name" name="name" value="Ada"...
    ...<li><b>Ada</b>: What a &lt;lovely&gt; place!</li>...

If the validation fails, the visitor gets a page with status 422. It is built by on_cancel of the
ValidationExecutor, which fills in the form again.

    $ curl -i -d name=Grace -d message= http://127.0.0.1:8000/
    HTTP/1.1 422 Unprocessable Content
    Content-Type: text/html; charset=UTF-8

    ...<input id="name" name="name" value="Grace"...
    ...<span id="message-error" class="error">Please write something.</span>...

A browser says which site's page a POST comes from. If it is another site (CSRF), the application
answers with 403 automatically.

    $ curl -H 'Origin: http://elsewhere.example' -d name=Eve -d message=Buy! http://127.0.0.1:8000/
    403 Forbidden
"""

# search words: SQLite, database, CRUD, example application

import os
import secrets
import sqlite3
from pathlib import Path

from webapp import Markup, ValidationExecutor, WebApp

DATABASE = os.environ.get("GUESTBOOK", "guestbook.sqlite3")

# The line end after <textarea> is not part of its text.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
</head>
<body>
<h1>Guestbook</h1>
{notice}
<form method="post" action="/">
<p><label for="name">Your name</label>
<input id="name" name="name" value="{name}" autocomplete="name" maxlength="50"{name_state}>
{name_error}
<p><label for="message">Your message</label>
<textarea id="message" name="message" rows="4"{message_state}>
{message}</textarea>{message_error}
<p><button>Sign the guestbook</button>
</form>
<h2>Who was here</h2>
<ul class="entries">
{entries}
</ul>
</body>
</html>
"""
STATE = Markup(' aria-invalid="true" aria-describedby="{field}-error"{focus}')
ERROR = Markup('\n<span id="{field}-error" class="error">{text}</span>')
NOTICE = Markup('<p role="status">{}</p>')
ITEM = Markup("<li><b>{}</b>: {}</li>")

app = WebApp(secret_key=os.environ.get("GUESTBOOK_KEY") or secrets.token_bytes())
app.static("/static", Path(__file__).parent / "static")


@app.before
def open_database(context):
    db = context.state["db"] = sqlite3.connect(DATABASE)
    context.on_close(db.close)
    db.execute("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, name TEXT, message TEXT)")


def show_page(context, name="", message="", errors=None, notice=""):
    """Build the page. `errors` has the messages of each field, which are tied to its input."""
    state, text = {}, {}
    for field, messages in (errors or {}).items():
        focus = "" if state else " autofocus"  # on the first field
        state[field] = STATE.format(field=field, focus=focus)
        text[field] = ERROR.format(field=field, text=" ".join(messages))
    entries = context.state["db"].execute(
        "SELECT name, message FROM entry ORDER BY id DESC LIMIT 100"
    )
    items = [ITEM.format(name, message) for name, message in entries]
    context.response.html(
        PAGE,
        title="Error: Guestbook" if errors else "Guestbook",
        notice=notice and NOTICE.format(notice),
        name=name,
        name_state=state.get("name", ""),
        name_error=text.get("name", ""),
        message=message,
        message_state=state.get("message", ""),
        message_error=text.get("message", ""),
        entries=Markup("\n").join(items) or Markup("<li>Nobody yet"),
    )


class EntryForm(ValidationExecutor):
    def validate(self, context):
        form = context.request.form
        if not 0 < len(form.get("name", "").strip()) <= 50:
            self.add_error("name", "Please give your name, in 50 letters or fewer.")
        if not form.get("message", "").strip():
            self.add_error("message", "Please write something.")
        elif len(form["message"]) > 1000:
            self.add_error("message", "Please write 1,000 letters at most.")

    def on_cancel(self, context):
        form = context.request.form
        show_page(context, form.get("name", ""), form.get("message", ""), self.errors)


@app.get("/")
def guestbook(context):
    show_page(
        context, name=context.session.get("name", ""), notice=context.session.pop("notice", "")
    )


@app.post("/", EntryForm)
def sign(context):
    name, message = context.request.form["name"].strip(), context.request.form["message"].strip()
    with context.state["db"] as db:  # commits
        db.execute("INSERT INTO entry (name, message) VALUES (?, ?)", (name, message))
    context.session.update(name=name, notice=f"Thank you, {name}.")
    context.response.redirect("/")
