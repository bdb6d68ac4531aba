"""Try mistakes that people make who come from Flask, Django, Express or requests.

    python3 .ci/instruments/mistakes.py                  # webapp.py of this folder
    python3 .ci/instruments/mistakes.py /path/webapp.py  # another one, to compare
    python3 .ci/instruments/mistakes.py --list silent    # the rows with this verdict
    python3 .ci/instruments/mistakes.py --only redirect -v

Each row is a habit and a short program that follows it. The program runs with its requests, and the
verdict is what its author would notice:

    good     it works as meant, or the message says what to write instead
    ok       an error, a record of the log or a refusal, without what to write
    silent   nothing is said, and the program does not do what its author meant
    open     nothing is said, and a visitor gets or does what the author had forbidden

The message is all that the author can see: the exception, the records of the logger `webapp` from
INFO up, and the reason on the access line, which the test client shows too (but for the mere fact
that no route matched). A row states the
verdict that it expects, and the exit status is 1 if one of them is another. What stays silent or
open has an owner: `ours`, `python` (the language says nothing either) or `every` (so do all the
frameworks that were looked at).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import re
import sys
import tempfile
import textwrap
import types
from collections import Counter
from pathlib import Path
from typing import NamedTuple

VERDICTS = ("good", "ok", "silent", "open")


class Row(NamedTuple):
    expected: str
    habit: str
    program: str
    # Words that a message has to have, as a regular expression; what to write is among them.
    advice: str = "(?!)"
    # Expressions in the names of the program.
    works: str = "False"  # it does what its author meant
    opens: str = "False"  # a visitor gets what the author had forbidden
    owner: str = ""  # of what stays silent or open


PRELUDE = """
    from pathlib import Path
    from webapp import *
    import webapp
    folder = Path(__file__).parent
    app = WebApp(secret_key="only for mistakes")
    client = TestClient(app)
    deleted = []
"""

# A page that only the administrator may use, in front of each guard.
ADMIN = """
    @app.post("/admin/delete")
    def delete(context):
        deleted.append("everything")
        return "deleted"

    @app.get("/admin")
    def show(context):
        return "SECRET"
"""
ASK_BOTH = """
    answer = client.post("/admin/delete")
    page = client.get("/admin")
"""
LEAKS = "deleted or 'SECRET' in page.text"

GUARDS = [
    Row(
        "good",
        "Rails: a before hook renders a page and returns nothing",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.html("<h1>Please log in</h1>")
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Express: res.status(200).send(...) in middleware, without next()",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.code(200).text("Please log in")
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Express: res.json({error}) in middleware",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.json({"error": "log in"})
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "open",
        "a guard adds a member, which also handlers and hooks do that prepare",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.json("error", "log in")
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
        owner="ours",
    ),
    Row(
        "good",
        "a login page as a file, without return",
        ADMIN
        + """
    (folder / "login.html").write_text("Please log in")
    @app.before
    def log_in(context):
        context.response.file(folder / "login.html")
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Django middleware: on_request answers for maintenance, without return",
        """
    class Shop(WebApp):
        def on_request(self, context):
            context.response.text("closed for maintenance")
    app = Shop()
    client = TestClient(app)
    """
        + ADMIN
        + ASK_BOTH,
        works="not deleted and 'closed' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "an executor in front of the handler renders, without return",
        """
    def log_in(context):
        context.response.html("Please log in")

    @app.post("/admin/delete", log_in)
    def delete(context):
        deleted.append("everything")
        return "deleted"

    @app.get("/admin", log_in)
    def show(context):
        return "SECRET"
    """
        + ASK_BOTH,
        works="not deleted and 'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "an Executor class renders and does not cancel",
        """
    class LogIn(Executor):
        def execute(self, context):
            context.response.html("Please log in")

    @app.get("/admin", LogIn)
    def show(context):
        return "SECRET"
    page = client.get("/admin")
    """,
        works="'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Django: validate renders the form again, and adds no error",
        """
    class Check(ValidationExecutor):
        def validate(self, context):
            context.response.html("The name is missing")

    @app.post("/admin/delete", Check)
    def delete(context):
        deleted.append("everything")
        return "deleted"
    page = client.post("/admin/delete")
    """,
        works="not deleted and 'missing' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "a hook around a mounted application renders, without return",
        """
    def other(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"SECRET"]
    app.mount("/admin", other)

    @app.before
    def log_in(context):
        context.response.html("Please log in")
    page = client.get("/admin")
    """,
        works="'log in' in page.text",
        opens=LEAKS,
    ),
    Row(
        "good",
        "a guard sets the status and returns nothing",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.code(403)
    """
        + ASK_BOTH,
        works="not deleted and page.status == 403",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Flask: response.status_code = 403 in a guard",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.status_code = 403
    """
        + ASK_BOTH,
        r"response\.code\(",
        works="not deleted and page.status == 403",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Bottle: response.status = 403 in a guard",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.status = 403
    """
        + ASK_BOTH,
        r"code\(403\)",
        works="not deleted and page.status == 403",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Django: a guard is a test that returns False",
        ADMIN
        + """
    @app.before
    def is_admin(context):
        return False
    """
        + ASK_BOTH,
        r"code\(404\) for a status",
        opens=LEAKS,
    ),
    Row(
        "ok",
        "Koa, aiohttp: a guard that returns True, so that the request goes on",
        ADMIN
        + """
    @app.before
    def is_admin(context):
        return True
    """
        + ASK_BOTH,
        "return None",
    ),
    Row(
        "open",
        "the exception of a guard is made, and not raised",
        ADMIN
        + """
    @app.before
    def log_in(context):
        HttpException(401, "log in")
    """
        + ASK_BOTH,
        opens=LEAKS,
        owner="python",
    ),
    Row(
        "good",
        "the exception of a guard is returned",
        ADMIN
        + """
    @app.before
    def log_in(context):
        return HttpException(401, "log in")
    """
        + ASK_BOTH,
        "to raise an exception, write raise",
        opens=LEAKS,
    ),
    Row(
        "open",
        "two blocks with one prefix: the guard in one, the pages in the other",
        """
    def log_in(context):
        raise HttpException(401, "log in")
    with app.path("/admin") as guard:
        guard.before(log_in)
    with app.path("/admin") as pages:
        @pages.get("/users")
        def users(context):
            return "SECRET"
    page = client.get("/admin/users")
    """,
        opens=LEAKS,
        owner="every",
    ),
    Row(
        "open",
        "Flask: @login_required above @app.get",
        """
    def login_required(handler):
        def check(context):
            raise HttpException(401, "log in")
        return check

    @login_required
    @app.get("/admin")
    def show(context):
        return "SECRET"
    page = client.get("/admin")
    """,
        opens=LEAKS,
        owner="every",
    ),
    Row(
        "open",
        "the check stands behind the handler in the route",
        """
    def show(context):
        return "SECRET"
    def log_in(context):
        raise HttpException(401, "log in")
    app.get("/admin", show, log_in)
    page = client.get("/admin")
    """,
        opens=LEAKS,
        owner="every",
    ),
    Row(
        "good",
        "Flask: @app.before on the application within the with block of an inner one",
        """
    with app.path("/admin") as admin:
        @app.before
        def log_in(context):
            raise HttpException(401, "log in")
        @admin.get("/users")
        def users(context):
            return "SECRET"
    page = client.get("/admin/users")
    """,
        works="page.status == 401",
        opens=LEAKS,
    ),
    Row(
        "good",
        "the page of a block is declared on the application",
        """
    with app.path("/admin") as admin:
        @admin.before
        def log_in(context):
            raise HttpException(401, "log in")
        @app.get("/admin/users")
        def users(context):
            return "SECRET"
    page = client.get("/admin/users")
    """,
        "declare it with that scope",
        opens=LEAKS,
    ),
    Row(
        "good",
        "the block is named, and not opened by its name",
        """
    with app.path("/admin"):
        @app.get("/users")
        def users(context):
            return "SECRET"
    """,
        r"@scope\.get",
    ),
    Row(
        "good",
        "a before hook with a yield, as a fixture or context manager has it",
        """
    @app.before
    def log_in(context):
        yield
        raise HttpException(401)
    """,
        "yield",
    ),
    Row(
        "good",
        "FastAPI: an async guard",
        """
    @app.before
    async def log_in(context):
        raise HttpException(401)
    """,
        "async",
    ),
    Row(
        "good",
        "@app.on_request as a decorator",
        """
    @app.on_request
    def log_in(context):
        raise HttpException(401)
    """,
        r"before\(\)",
    ),
    Row(
        "good",
        "on_requests in a subclass",
        """
    class Shop(WebApp):
        def on_requests(self, context):
            raise HttpException(401)
    app = Shop()
    client = TestClient(app)
    """
        + ADMIN
        + ASK_BOTH,
        "on_request\\b",
        opens=LEAKS,
    ),
    Row(
        "good",
        "JavaScript: onRequest in a subclass",
        """
    class Shop(WebApp):
        def onRequest(self, context):
            raise HttpException(401)
    app = Shop()
    client = TestClient(app)
    """
        + ADMIN
        + ASK_BOTH,
        "on_request\\b",
        opens=LEAKS,
    ),
    Row(
        "good",
        "Executor with run() in place of execute()",
        """
    class LogIn(Executor):
        def run(self, context):
            raise HttpException(401)
    @app.get("/admin", LogIn)
    def show(context):
        return "SECRET"
    page = client.get("/admin")
    """,
        r"execute\(context\)",
        opens=LEAKS,
    ),
]

REDIRECTS = [
    Row(
        "good",
        "redirect, and the page behind it without a return",
        """
    @app.get("/admin")
    def show(context):
        if "user" not in context.session:
            context.response.redirect("/login")
        context.response.html("<p>SECRET</p>")
    page = client.get("/admin")
    """,
        "return",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "redirect, and the page returned behind it",
        """
    @app.get("/admin")
    def show(context):
        if "user" not in context.session:
            context.response.redirect("/login")
        return "SECRET"
    page = client.get("/admin")
    """,
        "return",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "redirect, and a JSON document returned behind it",
        """
    @app.get("/admin")
    def show(context):
        if "user" not in context.session:
            context.response.redirect("/login")
        return {"key": "SECRET"}
    page = client.get("/admin")
    """,
        "return",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "redirect, and the page sent behind it",
        """
    @app.get("/admin")
    def show(context):
        if "user" not in context.session:
            context.response.redirect("/login")
        context.response.send("SECRET")
    page = client.get("/admin")
    """,
        "return",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "redirect in a guard, without a return",
        ADMIN
        + """
    @app.before
    def log_in(context):
        context.response.redirect("/login")
    """
        + ASK_BOTH,
        works="not deleted and page.status == 303",
        opens=LEAKS,
    ),
    Row(
        "open",
        "redirect in a handler, without a return, and then the work",
        """
    @app.post("/admin/delete")
    def delete(context):
        if "user" not in context.session:
            context.response.redirect("/login")
        deleted.append("everything")
    answer = client.post("/admin/delete")
    """,
        opens="deleted",
        owner="every",
    ),
    Row(
        "good",
        "a generator that redirects, and then yields the page",
        """
    @app.get("/admin")
    def show(context):
        context.response.redirect("/login")
        yield "SECRET"
    page = client.get("/admin")
    """,
        "return",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "a generator that ends with return and the page",
        """
    @app.get("/export")
    def export(context):
        if "all" in context.request.query:
            yield "a,b"
        return "nothing to export"
    answer = client.get("/export")
    """,
        "yield",
        works="'nothing to export' in answer.text",
    ),
    Row(
        "ok",
        "Flask: return redirect(...)",
        """
    @app.get("/")
    def index(context):
        return redirect("/login")
    answer = client.get("/")
    """,
        r"response\.redirect",
        owner="python",
    ),
    Row(
        "good",
        "context.redirect",
        """
    @app.get("/")
    def index(context):
        return context.redirect("/login")
    answer = client.get("/")
    """,
        r"context\.response",
    ),
    Row(
        "good",
        "Express: redirect(302, location)",
        """
    @app.get("/")
    def index(context):
        return context.response.redirect(302, "/login")
    answer = client.get("/")
    """,
        "the location of redirect",
    ),
    Row(
        "good",
        "a redirect to the address in the query",
        """
    @app.get("/")
    def index(context):
        return context.response.redirect(context.request.query["next"])
    page = client.get("/", query={"next": "//evil.example"})
    """,
        "external",
        opens="'evil' in page.headers.get('Location', '')",
    ),
    Row(
        "good",
        "Django: redirect to the name of a view",
        """
    @app.get("/login")
    def login(context):
        return "log in"
    @app.get("/")
    def index(context):
        return context.response.redirect(context.url("login"))
    answer = client.get("/")
    """,
        "handler",
    ),
    Row(
        "good",
        "redirect to the function",
        """
    @app.get("/")
    def index(context):
        return context.response.redirect(index)
    answer = client.get("/")
    """,
        r"context\.url\(handler\)",
    ),
]

EXCEPTIONS = [
    Row(
        "good",
        "a cookie put on one exception",
        """
    @app.get("/logout")
    def logout(context):
        error = HttpException(403, "logged out")
        error.headers["Set-Cookie"] = "session=SECRET"
        raise error
    @app.get("/other")
    def other(context):
        raise HttpException(400, "of another client")
    client.get("/logout")
    page = TestClient(app).get("/other")
    """,
        works="'Set-Cookie' not in page.headers",
        opens="'Set-Cookie' in page.headers",
    ),
    Row(
        "good",
        "a header put on one exception of a class with headers of its own",
        """
    class SoldOut(HttpException):
        status_code = 409
        headers = {"X-Shop": "1"}
        def __init__(self, message=""):
            self.message = message
    error = SoldOut()
    error.headers["Set-Cookie"] = "session=SECRET"
    later = SoldOut()
    """,
        works="'Set-Cookie' not in later.headers",
        opens="'Set-Cookie' in later.headers",
    ),
    Row(
        "good",
        "an exception class without super().__init__(), with a status",
        """
    class SoldOut(HttpException):
        status_code = 409
        def __init__(self, item):
            self.item = item
    @app.get("/")
    def index(context):
        raise SoldOut("tea")
    answer = client.get("/")
    """,
        works="answer.status == 409",
    ),
    Row(
        "good",
        "an exception class without super().__init__(), and without a status",
        """
    class SoldOut(HttpException):
        def __init__(self, item):
            self.item = item
    @app.get("/")
    def index(context):
        raise SoldOut("tea")
    answer = client.get("/")
    """,
        r"super\(\)\.__init__",
    ),
    Row(
        "good",
        "HttpException(400, public=...) looks empty in the log",
        """
    error = HttpException(400, public="No file was chosen")
    """,
        works="'No file' in repr(error) and 'No file' in str(error)",
    ),
    Row(
        "good",
        "HttpException('Not found', 404): the arguments swapped",
        """
    raise HttpException("Not found", 404)
    """,
        "a status must be an int",
    ),
    Row(
        "good",
        "HttpException with headers as a list of pairs",
        """
    raise HttpException(401, headers=[("WWW-Authenticate", "Basic")])
    """,
        "map names to values",
    ),
    Row(
        "ok",
        "FastAPI: HttpException(404, detail=...)",
        """
    raise HttpException(404, detail="No such item")
    """,
        "public=",
    ),
    Row(
        "ok",
        "FastAPI: HTTPException",
        """
    from webapp import HTTPException
    """,
        "HttpException",
        owner="python",
    ),
    Row(
        "ok",
        "Flask: abort(404)",
        """
    @app.get("/")
    def index(context):
        abort(404)
    answer = client.get("/")
    """,
        "HttpException",
        owner="python",
    ),
    Row(
        "good",
        "Bottle: context.abort(404)",
        """
    @app.get("/")
    def index(context):
        context.abort(404)
    answer = client.get("/")
    """,
        r"raise HttpException\(404\)",
    ),
    Row(
        "ok",
        "Django: raise Http404",
        """
    @app.get("/")
    def index(context):
        raise Http404()
    answer = client.get("/")
    """,
        "NotFoundException",
        owner="python",
    ),
    Row(
        "good",
        "an error hook with the parameters in another order",
        """
    @app.error
    def page(context, status_code, cause):
        if status_code == 404:
            return "There is no such page"
    answer = client.get("/nowhere")
    """,
        "cause, status_code",
        works="'no such page' in answer.text",
    ),
    Row(
        "good",
        "Flask: an error hook that takes the error",
        """
    @app.error
    def page(error):
        return "There is no such page"
    """,
        r"\(context, cause, status_code\)",
    ),
    Row(
        "good",
        "Express: an error hook (err, req, res, next)",
        """
    @app.error
    def page(err, req, res, next):
        return "There is no such page"
    """,
        r"\(context, cause, status_code\)",
    ),
    Row(
        "good",
        "Flask: @app.errorhandler(404)",
        """
    @app.errorhandler(404)
    def page(error):
        return "There is no such page"
    """,
        r"@app\.error",
    ),
    Row(
        "good",
        "Bottle: @app.error(404)",
        """
    @app.error(404)
    def page(context, cause, status_code):
        return "There is no such page"
    answer = client.get("/nowhere")
    """,
        works="answer.status == 404 and 'no such page' in answer.text",
    ),
    Row(
        "good",
        "Flask: an error hook for a class of exceptions",
        """
    class SoldOut(Exception):
        pass
    @app.error(SoldOut)
    def page(context, cause, status_code):
        return "It is sold out"
    @app.get("/")
    def index(context):
        raise SoldOut()
    answer = client.get("/")
    """,
        works="'sold out' in answer.text",
    ),
    Row(
        "ok",
        "@app.error() with empty brackets",
        """
    @app.error()
    def page(context, cause, status_code):
        return "failed"
    """,
        r"@app\.error|error\(404\)|\(context, cause, status_code\)",
    ),
    Row(
        "good",
        "Flask: the error hook returns (page, status)",
        """
    @app.error
    def page(context, cause, status_code):
        return "There is no such page", 404
    answer = client.get("/nowhere")
    """,
        r"response\.code\(",
    ),
    Row(
        "good",
        "resolve_status_code returns nothing for most exceptions",
        """
    class Shop(WebApp):
        def resolve_status_code(self, cause):
            if isinstance(cause, KeyError):
                return 404
    app = Shop()
    @app.get("/")
    def index(context):
        raise ValueError("no number")
    answer = TestClient(app).get("/")
    """,
        "a status must be an int",
    ),
    Row(
        "good",
        "the text of an exception is a text for visitors",
        """
    @app.get("/")
    def index(context):
        raise HttpException(400, "SECRET of the log")
    page = client.get("/")
    """,
        works="'SECRET' not in page.text",
        opens="'SECRET' in page.text",
    ),
    Row(
        "ok",
        "int() of a value from the query",
        """
    @app.get("/")
    def index(context):
        return str(int(context.request.query["page"]))
    answer = client.get("/", query={"page": "abc"})
    """,
        "parse",
        owner="every",
    ),
]

SUBCLASSES = [
    Row(
        "good",
        "secret_field = [...]: the name misspelt",
        """
    class SignUp(ValidationExecutor):
        secret_field = ["password"]
        def validate(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    page = client.post("/", form={"password": "SECRET"})
    """,
        "secret_fields",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "JavaScript: secretFields",
        """
    class SignUp(ValidationExecutor):
        secretFields = ["password"]
        def validate(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    page = client.post("/", form={"password": "SECRET"})
    """,
        "secret_fields",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "secret_fields of a JSON document that is nested",
        """
    class SignUp(ValidationExecutor):
        secret_fields = "password"
        def validate(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    page = client.post("/", json={"user": [{"password": "SECRET"}]})
    """,
        works="'SECRET' not in page.text",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "secret_fields in another case than the form",
        """
    class SignUp(ValidationExecutor):
        secret_fields = ["password"]
        def validate(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    page = client.post("/", form={"Password": "SECRET"})
    """,
        works="'SECRET' not in page.text",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "on_canceled in an executor",
        """
    class SignUp(ValidationExecutor):
        def validate(self, context):
            self.add_error("name", "Please tell your name.")
        def on_canceled(self, context):
            context.response.html("Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    answer = client.post("/")
    """,
        "on_cancel\\b",
    ),
    Row(
        "good",
        "Django: clean() in place of validate()",
        """
    class SignUp(ValidationExecutor):
        def clean(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    answer = client.post("/")
    """,
        r"validate\(context\)",
    ),
    Row(
        "good",
        "validation() in place of validate()",
        """
    class SignUp(ValidationExecutor):
        def validated(self, context):
            self.add_error("name", "Please tell your name.")
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    answer = client.post("/")
    """,
        r"validate\b",
    ),
    Row(
        "good",
        "validate returns its errors",
        """
    class SignUp(ValidationExecutor):
        def validate(self, context):
            return {"name": "Please tell your name."}
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    answer = client.post("/")
    """,
        "add_error",
        opens="answer.text == 'welcome'",
    ),
    Row(
        "good",
        "add_error is given an exception",
        """
    class SignUp(ValidationExecutor):
        def validate(self, context):
            self.add_error("name", ValueError("SECRET"))
    @app.post("/", SignUp)
    def sign_up(context):
        return "welcome"
    page = client.post("/")
    """,
        r"str\(message\)",
        opens="'SECRET' in page.text",
    ),
    Row(
        "good",
        "an instance of an executor in a route",
        """
    class SignUp(ValidationExecutor):
        def validate(self, context):
            pass
    @app.post("/", SignUp())
    def sign_up(context):
        return "welcome"
    """,
        "pass the class",
    ),
    Row(
        "good",
        "a subclass of WebApp without super().__init__()",
        """
    class Shop(WebApp):
        def __init__(self):
            self.get("/", lambda context: "hello")
    Shop()
    """,
        r"super\(\)\.__init__\(\)",
    ),
    Row(
        "ok",
        "the class in place of the application",
        """
    @WebApp.get("/")
    def index(context):
        return "hello"
    """,
        r"WebApp\(\)",
    ),
    Row(
        "good",
        "Tornado: def get(self) in a subclass",
        """
    class Shop(WebApp):
        def get(self):
            return "hello"
    """,
        "final",
    ),
]

VALUES = [
    Row(
        "good",
        'cookie(secure="false")',
        """
    @app.get("/")
    def index(context):
        context.response.cookie("a", "b", secure="false")
        return "hello"
    answer = client.get("/")
    """,
        "True",
    ),
    Row(
        "good",
        'cookie(httponly="no"), as from a configuration',
        """
    @app.get("/")
    def index(context):
        context.response.cookie("a", "b", httponly="no")
        return "hello"
    answer = client.get("/")
    """,
        "True",
    ),
    Row(
        "good",
        'Server(quiet="no")',
        """
    server = Server(app, quiet="no")
    server.stop()
    """,
        "True",
    ),
    Row(
        "good",
        'redirect(..., external="no")',
        """
    @app.get("/")
    def index(context):
        return context.response.redirect("https://evil.example/", external="no")
    page = client.get("/")
    """,
        "True",
        opens="page.status == 303",
    ),
    Row(
        "good",
        'TestClient(app, raise_errors="no")',
        """
    client = TestClient(app, raise_errors="no")
    """,
        "True",
    ),
    Row(
        "good",
        'body(data, "csv")',
        """
    @app.get("/")
    def index(context):
        return context.response.body(b"a,b", "csv")
    answer = client.get("/")
    """,
        r"media type such as text/",
    ),
    Row(
        "good",
        'stream(rows, "csv")',
        """
    @app.get("/")
    def index(context):
        return context.response.stream(iter(["a,b"]), "csv")
    answer = client.get("/")
    """,
        r"media type such as text/",
    ),
    Row(
        "good",
        'file(path, content_type="csv")',
        """
    @app.get("/")
    def index(context):
        return context.response.file(webapp.__file__, content_type="csv")
    answer = client.get("/")
    """,
        r"media type such as text/",
    ),
    Row(
        "good",
        'Express: accepts("html")',
        """
    @app.get("/")
    def index(context):
        return "page" if context.request.accepts("html", "json") == "html" else "nothing"
    answer = client.get("/", headers={"Accept": "text/html"})
    """,
        r"media type such as text/",
        works="answer.text == 'page'",
    ),
    Row(
        "good",
        'header("Content-Type", "html")',
        """
    @app.get("/")
    def index(context):
        context.response.header("Content-Type", "html")
        return "<p>"
    answer = client.get("/")
    """,
        r"media type such as text/",
    ),
    Row(
        "good",
        'header("ETag", "abc") without quotes',
        """
    @app.get("/")
    def index(context):
        context.response.header("ETag", "abc")
        return "hello"
    answer = client.get("/")
    """,
        "a quoted string",
    ),
    Row(
        "good",
        'header("Last-Modified", "2026-01-01")',
        """
    @app.get("/")
    def index(context):
        context.response.header("Last-Modified", "2026-01-01")
        return "hello"
    answer = client.get("/")
    """,
        "GMT|date",
    ),
    Row(
        "good",
        'header("Expires", "60")',
        """
    @app.get("/")
    def index(context):
        context.response.header("Expires", "60")
        return "hello"
    answer = client.get("/")
    """,
        "GMT|date",
    ),
    Row(
        "good",
        'header("X-Count", 5)',
        """
    @app.get("/")
    def index(context):
        context.response.header("X-Count", 5)
        return "hello"
    answer = client.get("/")
    """,
        "str",
    ),
    Row(
        "good",
        "Django: a pattern with ^ and $",
        """
    @app.get("^/items$")
    def items(context):
        return "items"
    answer = client.get("/items")
    """,
        r"\^",
    ),
    Row(
        "good",
        "a pattern with percent escapes",
        """
    @app.get("/caf%C3%A9")
    def items(context):
        return "items"
    answer = client.get("/café")
    """,
        "caf%C3%A9|percent",
    ),
    Row(
        "good",
        "a pattern with a blank in front",
        """
    @app.get(" /items")
    def items(context):
        return "items"
    answer = client.get("/items")
    """,
        "cannot contain ' '",
    ),
    Row(
        "good",
        "Flask: /<int:number>",
        """
    @app.get("/items/<int:number>")
    def item(context, number):
        return str(number)
    """,
        r"\{name",
    ),
    Row(
        "good",
        "Express: /:id",
        """
    @app.get("/items/:id")
    def item(context, id):
        return id
    """,
        r"\{name",
    ),
    Row(
        "good",
        "FastAPI, Falcon: {id:uuid}",
        """
    @app.get("/items/{id:uuid}")
    def item(context, id):
        return id
    """,
        r"\{name:int\}",
    ),
    Row(
        "good",
        "Express: a pattern that ends in *",
        """
    @app.get("/items/*")
    def item(context):
        return "all"
    """,
        r"\{name:path\}",
    ),
    Row(
        "good",
        "a pattern with a query",
        """
    @app.get("/items?page={page}")
    def item(context, page):
        return page
    """,
        r"context\.request\.query",
    ),
    Row(
        "good",
        'path("/x", handler): a function that declares nothing',
        """
    def show(scope):
        return "hello"
    app.path("/x", show)
    answer = client.get("/x")
    """,
        r"\.get",
    ),
    Row(
        "good",
        "Flask: /x/ for a prefix and a pattern without a slash",
        """
    with app.path("admin") as admin:
        @admin.get("users")
        def users(context):
            return "users"
    answer = client.get("/admin/users")
    """,
        works="answer.text == 'users'",
    ),
    Row(
        "good",
        "mount with the arguments swapped",
        """
    app.mount(WebApp(), "/sub")
    """,
        "a pattern is a str|WSGI application",
    ),
    Row(
        "good",
        "static with the arguments swapped",
        """
    app.static("public", "/static")
    """,
        "no directory",
    ),
    Row(
        "good",
        "static serves the folder of the program",
        """
    app.static("/", folder)
    """,
        "serves your",
    ),
    Row(
        "good",
        "text(5)",
        """
    @app.get("/")
    def index(context):
        return context.response.text(5)
    answer = client.get("/")
    """,
        "must be a str",
    ),
    Row(
        "good",
        "body of a str",
        """
    @app.get("/")
    def index(context):
        return context.response.body("hello", "text/plain")
    answer = client.get("/")
    """,
        r"text\(\)",
    ),
    Row(
        "good",
        "cookie of a number",
        """
    @app.get("/")
    def index(context):
        context.response.cookie("a", 5)
    answer = client.get("/")
    """,
        "must be a str",
    ),
    Row(
        "good",
        'cookie(max_age="3600")',
        """
    @app.get("/")
    def index(context):
        context.response.cookie("a", "b", max_age="3600")
    answer = client.get("/")
    """,
        "a number",
    ),
    Row(
        "good",
        "session without a key",
        """
    app = WebApp()
    @app.get("/")
    def index(context):
        context.session["user"] = "ann"
    answer = TestClient(app).get("/")
    """,
        r"secret_key=",
    ),
    Row(
        "good",
        "a date in the session",
        """
    from datetime import date
    @app.get("/")
    def index(context):
        context.session["day"] = date(2026, 1, 1)
    answer = client.get("/")
    """,
        "day",
    ),
    Row(
        "good",
        "Flask: a list in the session is changed in place",
        """
    @app.get("/")
    def index(context):
        context.session.setdefault("cart", []).append("tea")
        return str(len(context.session["cart"]))
    client.get("/")
    answer = client.get("/")
    """,
        works="answer.text == '2'",
    ),
    Row(
        "good",
        'trusted_origins="https://shop.example"',
        """
    WebApp(trusted_origins="https://shop.example")
    """,
        r"a list such as",
    ),
    Row(
        "good",
        'max_body_size="16 MB"',
        """
    WebApp(max_body_size="16 MB")
    """,
        "whole number",
    ),
    Row(
        "good",
        "parse(name, bool)",
        """
    @app.get("/")
    def index(context):
        return str(context.request.query.parse("all", bool))
    answer = client.get("/", query={"all": "false"})
    """,
        "'false': False",
    ),
    Row(
        "good",
        "Flask: request.args.get(name, int)",
        """
    @app.get("/")
    def index(context):
        return str(context.request.query.get("page", int))
    answer = client.get("/", query={"page": "2"})
    """,
        r"parse\(",
    ),
    Row(
        "ok",
        "Flask: args.get(name, 1, type=int)",
        """
    @app.get("/")
    def index(context):
        return str(context.request.query.get("page", 1, type=int))
    answer = client.get("/", query={"page": "2"})
    """,
        r"parse\(",
        owner="python",
    ),
    Row(
        "open",
        "a page with the visitor's text in an f-string",
        """
    @app.get("/")
    def index(context):
        return context.response.html(f"Hello {context.request.query['name']}")
    page = client.get("/", query={"name": "<script>"})
    """,
        opens="'<script>' in page.text",
        owner="every",
    ),
    Row(
        "good",
        "Jinja: {{ name }} in a template",
        """
    @app.get("/")
    def index(context):
        return context.response.html("<p>{{ name }}</p>", name="Ann")
    answer = client.get("/")
    """,
        r"\{name\}",
        works="'Ann' in answer.text",
        owner="python",
    ),
    Row(
        "good",
        "Flask: the name of a template's file",
        """
    @app.get("/")
    def index(context):
        return context.response.html("page.html", name="Ann")
    answer = client.get("/")
    """,
        "read|text|file",
    ),
    Row(
        "open",
        "Express: response.file with a name from the query",
        """
    (folder / "notes").write_text("SECRET")
    (folder / "public").mkdir()
    @app.get("/")
    def index(context):
        return context.response.file(f"{folder}/public/{context.request.query['name']}")
    page = client.get("/", query={"name": "../notes"})
    """,
        opens="'SECRET' in page.text",
        owner="every",
    ),
    Row(
        "good",
        "an uploaded file is saved under the name that the client gave",
        """
    @app.post("/")
    def upload(context):
        return context.request.files["photo"].filename
    page = client.post("/", files={"photo": ("../../etc/passwd", b"x")})
    """,
        works="page.text == 'passwd'",
        opens="'/' in page.text",
    ),
]

NAMES = [
    Row(
        "good",
        "Flask: before_request",
        """
    @app.before_request
    def log_in():
        pass
    """,
        r"@app\.before",
    ),
    Row(
        "good",
        "Flask: register_blueprint",
        """
    app.register_blueprint(None)
    """,
        r"app\.path\(",
    ),
    Row(
        "good",
        "FastAPI: include_router",
        """
    app.include_router(None)
    """,
        r"app\.path\(",
    ),
    Row(
        "good",
        "Express: app.use(middleware)",
        """
    app.use(lambda context: None)
    """,
        r"@app\.before",
    ),
    Row(
        "good",
        "Express: app.listen(3000)",
        """
    app.listen(3000)
    """,
        r"app\.run\(",
    ),
    Row(
        "good",
        "Flask: app.config[...]",
        """
    app.config["SECRET_KEY"] = "x"
    """,
        r"WebApp\(\)",
    ),
    Row(
        "good",
        "Flask: app.secret_key = ...",
        """
    app.secret_key = "x"
    """,
        r"WebApp\(secret_key=",
    ),
    Row(
        "good",
        "Flask: WebApp(__name__)",
        """
    WebApp(__name__)
    """,
        r"WebApp\(secret_key=",
    ),
    Row(
        "ok",
        "Flask: app.run(debug=True)",
        """
    app.run(port=0, debug=True)
    """,
        "reload=True",
    ),
    Row(
        "ok",
        "FastAPI: WebApp(debug=True)",
        """
    WebApp(debug=True)
    """,
        "secret_key",
        owner="python",
    ),
    Row(
        "good",
        "Flask: app.logger",
        """
    app.logger.warning("hello")
    """,
        "getLogger",
    ),
    Row(
        "good",
        "Flask: app.test_client()",
        """
    app.test_client()
    """,
        r"TestClient\(app\)",
    ),
    Row(
        "good",
        '@app.route("/x")',
        """
    @app.route("/x")
    def index(context):
        return "hello"
    """,
        r"route\('GET', '/",
    ),
    Row(
        "good",
        'Flask: route("/x", methods=["GET", "POST"])',
        """
    @app.route("/x", methods=["GET", "POST"])
    def index(context):
        return "hello"
    """,
        r"route\(\['GET', 'POST'\]|route\(\[\"GET\"",
    ),
    Row(
        "good",
        'Falcon, aiohttp: route(["GET", "POST"], "/x")',
        """
    @app.route(["GET", "POST"], "/x")
    def index(context):
        return context.request.method
    answer = client.post("/x")
    """,
        works="answer.text == 'POST'",
    ),
    Row(
        "good",
        'Express: route("get", "/x")',
        """
    app.route("get", "/x")
    """,
        r"route\('GET'",
    ),
    Row(
        "good",
        "@app.get without brackets",
        """
    @app.get
    def index(context):
        return "hello"
    """,
        r"@app\.get\(",
    ),
    Row(
        "good",
        '@app.path("/x") in front of a handler',
        """
    @app.path("/x")
    def index(context):
        return "hello"
    """,
        r"@app\.get\(",
    ),
    Row(
        "good",
        "Flask: request.args",
        """
    @app.get("/")
    def index(context):
        return context.request.args["a"]
    answer = client.get("/?a=1")
    """,
        r"request\.query",
    ),
    Row(
        "good",
        "Flask: request.get_json()",
        """
    @app.post("/")
    def index(context):
        return context.request.get_json()
    answer = client.post("/", json={"a": 1})
    """,
        r"request\.json",
    ),
    Row(
        "good",
        "requests: request.json()",
        """
    @app.post("/")
    def index(context):
        return context.request.json()
    answer = client.post("/", json={"a": 1})
    """,
        "not callable|without brackets",
    ),
    Row(
        "good",
        "callable(request.json)",
        """
    @app.post("/")
    def index(context):
        return str(callable(context.request.json) or callable(context.request.query))
    answer = client.post("/", json={"a": 1})
    """,
        works="answer.text == 'False'",
    ),
    Row(
        "good",
        'Express: request.query("a")',
        """
    @app.get("/")
    def index(context):
        return context.request.query("a")
    answer = client.get("/?a=1")
    """,
        r"not callable|\[",
    ),
    Row(
        "good",
        "Express: request.query.a",
        """
    @app.get("/")
    def index(context):
        return context.request.query.a
    answer = client.get("/?a=1")
    """,
        r"getall",
    ),
    Row(
        "good",
        "Django: request.POST",
        """
    @app.post("/")
    def index(context):
        return context.request.POST["a"]
    answer = client.post("/", form={"a": "1"})
    """,
        r"request\.form",
    ),
    Row(
        "good",
        "Django: request.META",
        """
    @app.get("/")
    def index(context):
        return context.request.META["REMOTE_ADDR"]
    answer = client.get("/")
    """,
        r"environ",
    ),
    Row(
        "good",
        "Django: request.user",
        """
    @app.get("/")
    def index(context):
        return context.request.user
    answer = client.get("/")
    """,
        r"context\.state",
    ),
    Row(
        "good",
        "Express: request.params",
        """
    @app.get("/{id}")
    def index(context, id):
        return context.request.params["id"]
    answer = client.get("/5")
    """,
        r"body_all|context\.params",
    ),
    Row(
        "ok",
        "Express: context.params.id",
        """
    @app.get("/{id}")
    def index(context, id):
        return context.params.id
    answer = client.get("/5")
    """,
        r"\[",
        owner="python",
    ),
    Row(
        "good",
        "Flask: context.form",
        """
    @app.post("/")
    def index(context):
        return context.form["a"]
    answer = client.post("/", form={"a": "1"})
    """,
        r"context\.request",
    ),
    Row(
        "good",
        "Flask: context.g",
        """
    @app.get("/")
    def index(context):
        context.g.user = "ann"
        return "hello"
    answer = client.get("/")
    """,
        r"context\.state",
    ),
    Row(
        "ok",
        "Express: response.status(404)",
        """
    @app.get("/")
    def index(context):
        return context.response.status(404)
    answer = client.get("/")
    """,
        r"code\(",
        owner="python",
    ),
    Row(
        "good",
        "Flask: response.status_code = 201 in a handler",
        """
    @app.get("/")
    def index(context):
        context.response.status_code = 201
        return "made"
    answer = client.get("/")
    """,
        r"response\.code\(",
    ),
    Row(
        "good",
        "Bottle: response.status = 201 in a handler",
        """
    @app.get("/")
    def index(context):
        context.response.status = 201
        return "made"
    answer = client.get("/")
    """,
        r"code\(201\)",
        works="answer.status == 201",
    ),
    Row(
        "good",
        "Express: response.setHeader",
        """
    @app.get("/")
    def index(context):
        context.response.setHeader("X-Mine", "1")
        return "hello"
    answer = client.get("/")
    """,
        r"response\.header\(|\bheader\b",
    ),
    Row(
        "good",
        "Express: response.end()",
        """
    @app.get("/")
    def index(context):
        context.response.end("hello")
    answer = client.get("/")
    """,
        r"\bsend\b",
    ),
    Row(
        "good",
        "Flask: response.set_cookie",
        """
    @app.get("/")
    def index(context):
        context.response.set_cookie("a", "b")
        return "hello"
    answer = client.get("/")
    """,
        r"response\.cookie\(",
    ),
    Row(
        "good",
        "Express: response.cookies[...] = ...",
        """
    @app.get("/")
    def index(context):
        context.response.cookies["a"] = "b"
        return "hello"
    answer = client.get("/")
    """,
        r"response\.cookie\(",
    ),
    Row(
        "good",
        "Flask: response.headers[...] = ...",
        """
    @app.get("/")
    def index(context):
        context.response.headers["X-Mine"] = "1"
        return "hello"
    answer = client.get("/")
    """,
        r"response\.header\(",
        works="answer.headers.get('X-Mine') == '1'",
    ),
    Row(
        "good",
        "a look with hasattr for what another framework has",
        """
    seen = [hasattr(app, "errorhandler"), hasattr(app, "config"), "stop" in dir(app)]
    """,
        works="not any(seen)",
        owner="ours",
    ),
    Row(
        "good",
        "pydoc webapp shows what exists",
        """
    import pydoc
    seen = pydoc.plain(pydoc.render_doc(webapp))
    """,
        works="'errorhandler' not in seen and '<object object' not in seen",
        owner="ours",
    ),
    Row(
        "good",
        "help(TestClient.get) tells its name",
        """
    import pydoc
    seen = pydoc.plain(pydoc.render_doc(TestClient.get))
    """,
        works="'get(' in seen",
        owner="ours",
    ),
]

HANDLERS = [
    Row(
        "good",
        "Flask: return page, 201",
        """
    @app.get("/")
    def index(context):
        return "made", 201
    answer = client.get("/")
    """,
        r"response\.code\(201\)",
    ),
    Row(
        "good",
        "return 404",
        """
    @app.get("/")
    def index(context):
        return 404
    answer = client.get("/")
    """,
        r"code\(404\)",
    ),
    Row(
        "good",
        "a handler without a return",
        """
    @app.get("/")
    def index(context):
        "hello"
    answer = client.get("/")
    """,
        "is a return missing",
    ),
    Row(
        "good",
        "Flask: def index() without the context",
        """
    @app.get("/")
    def index():
        return "hello"
    """,
        r"\(context\)",
    ),
    Row(
        "good",
        "Flask: def item(number) without the context",
        """
    @app.get("/{number}")
    def item(number):
        return number
    """,
        r"\(context, number\)",
    ),
    Row(
        "good",
        "Express: def index(request, response)",
        """
    @app.get("/")
    def index(request, response):
        return "hello"
    """,
        r"\(context\)",
    ),
    Row(
        "good",
        "FastAPI: a query parameter in the signature",
        """
    @app.get("/")
    def index(context, page: int = 1):
        return str(page)
    """,
        r"query\.parse\('page', int, default=1\)",
    ),
    Row(
        "good",
        "FastAPI: async def",
        """
    @app.get("/")
    async def index(context):
        return "hello"
    """,
        "async",
    ),
    Row(
        "good",
        "a handler that is called",
        """
    def index(context=None):
        return "hello"
    app.get("/", index())
    """,
        "not an executor",
    ),
    Row(
        "good",
        "a route without its handler",
        """
    app.get("/")
    def index(context):
        return "hello"
    answer = client.get("/")
    """,
        "has no handler",
    ),
    Row(
        "good",
        "the same route twice",
        """
    @app.get("/users/{id}")
    def one(context, id):
        return id
    @app.get("/users/{name}")
    def two(context, name):
        return name
    """,
        "/users/{id}",
    ),
    Row(
        "good",
        "a route behind the first request",
        """
    app.get("/", lambda context: "hello")
    client.get("/")
    app.get("/late", lambda context: "late")
    """,
        "before the first request",
    ),
    Row(
        "good",
        "a decorator without functools.wraps, twice",
        """
    def logged(handler):
        def inner(*args):
            return handler(*args)
        return inner
    @app.get("/{a}")
    @logged
    def one(context, a):
        return a
    answer = client.get("/x")
    """,
        works="answer.text == 'x'",
    ),
    Row(
        "good",
        "Flask: after_request returns the response",
        """
    app.get("/", lambda context: "hello")
    @app.after
    def add(context):
        context.response.header("X-Mine", "1")
        return context.response
    answer = client.get("/")
    """,
        works="answer.headers.get('X-Mine') == '1'",
    ),
    Row(
        "ok",
        "Flask: an after hook that takes the response",
        """
    app.get("/", lambda context: "hello")
    @app.after
    def add(response):
        response.headers["X-Mine"] = "1"
        return response
    answer = client.get("/")
    """,
        r"context\.response",
    ),
    Row(
        "good",
        "an after hook that changes the page",
        """
    app.get("/", lambda context: "hello")
    @app.after
    def change(context):
        context.response.text("changed")
    answer = client.get("/")
    """,
        "already sent",
    ),
    Row(
        "good",
        "request.form of a missing field",
        """
    @app.post("/")
    def index(context):
        return context.request.form["title"]
    answer = client.post("/", form={"name": "x"})
    """,
        "Missing field 'title'",
    ),
    Row(
        "good",
        "request.form of a JSON document",
        """
    @app.post("/")
    def index(context):
        return context.request.form["title"]
    answer = client.post("/", json={"title": "x"})
    """,
        "no form",
    ),
    Row(
        "good",
        "a form without enctype: no files",
        """
    @app.post("/")
    def index(context):
        return context.request.files["photo"].filename
    answer = client.post("/", form={"photo": "x.jpg"})
    """,
        "multipart/form-data",
    ),
    Row(
        "silent",
        "request.method compared in small letters",
        """
    @app.any("/")
    def index(context):
        return "posted" if context.request.method == "post" else "page"
    answer = client.post("/")
    """,
        works="answer.text == 'posted'",
        owner="every",
    ),
    Row(
        "good",
        "a stream of one str",
        """
    @app.get("/")
    def index(context):
        return context.response.events("hello")
    answer = client.get("/")
    """,
        "iterable",
    ),
    Row(
        "good",
        "a generator function that is not called",
        """
    def rows():
        yield "a"
    @app.get("/")
    def index(context):
        return context.response.stream(rows)
    answer = client.get("/")
    """,
        "call it",
    ),
    Row(
        "good",
        "Flask: url_for('index')",
        """
    @app.get("/")
    def index(context):
        return context.url_for("index")
    answer = client.get("/")
    """,
        r"context\.url\(handler\)",
    ),
    Row(
        "good",
        "mount(sub.run)",
        """
    app.mount("/sub", WebApp().run)
    """,
        "pass the application itself",
    ),
    Row(
        "good",
        "json(name=value)",
        """
    @app.get("/")
    def index(context):
        return context.response.json(name="tea")
    answer = client.get("/")
    """,
        r"json\(",
        owner="python",
    ),
]

TESTS = [
    Row("good", "requests: get(params=...)", """client.get("/", params={"a": 1})""", "query="),
    Row("good", "requests: post(data=...)", """client.post("/", data={"a": 1})""", "form="),
    Row("good", "requests: post(url, {...})", """client.post("/", {"a": 1})""", "form="),
    Row("good", "requests: get(timeout=3)", """client.get("/", timeout=3)""", "it has"),
    Row(
        "good",
        "requests: get(allow_redirects=False)",
        """client.get("/", allow_redirects=False)""",
        "follow_redirects=True",
    ),
    Row(
        "good",
        'requests: get(cookies="a=b")',
        """client.get("/", cookies="a=b")""",
        r"client\.cookies\[",
    ),
    Row(
        "good",
        "requests: client.cookies = a str",
        """
    app.get("/", lambda context: context.request.cookies.get("a", "none"))
    client.cookies = "a=b"
    answer = client.get("/")
    """,
        r"client\.cookies\[",
        works="answer.text == 'b'",
    ),
    Row(
        "good",
        "requests: session.headers = {...}",
        """
    app.get("/", lambda context: context.request.headers.get("X-Token", "none"))
    client.headers = {"X-Token": "1"}
    answer = client.get("/")
    """,
        "headers=",
        works="answer.text == '1'",
    ),
    Row(
        "good",
        "requests: session.headers.update(...)",
        """client.headers.update({"X-Token": "1"})""",
        "headers=",
    ),
    Row(
        "good",
        "requests: session.auth = (name, password)",
        """
    app.get("/", lambda context: context.request.headers.get("Authorization", "none"))
    client.auth = ("ann", "secret")
    answer = client.get("/")
    """,
        "headers=",
        works="answer.text != 'none'",
    ),
    Row(
        "good",
        "httpx: client.follow_redirects = True",
        """
    app.get("/", lambda context: context.response.redirect("/b"))
    app.get("/b", lambda context: "there")
    client.follow_redirects = True
    answer = client.get("/")
    """,
        "follow_redirects=True",
        works="answer.text == 'there'",
    ),
    Row(
        "good",
        "requests: files={'f': Path}",
        """
    app.post("/", lambda context: context.request.files["f"].file.read())
    answer = client.post("/", files={"f": Path(__file__)})
    """,
        r"open\(|read_bytes\(",
    ),
    Row(
        "ok",
        "files=[...] without names",
        """client.post("/", files=["a"])""",
        r"\{",
    ),
    Row(
        "ok",
        "get(handler)",
        """
    @app.get("/hello")
    def hello(context):
        return "hello"
    client.get(hello)
    """,
        r"get\(.?/",
    ),
    Row(
        "good",
        "headers as a str",
        """client.get("/", headers="X-Token: 1")""",
        "mapping",
    ),
    Row(
        "good",
        "a None in a form",
        """client.post("/", form={"a": None})""",
        "leave it out",
    ),
    Row(
        "good",
        "get with a form",
        """client.get("/", form={"a": 1})""",
        "has no form|form",
    ),
    Row(
        "good",
        "requests: response.json()",
        """
    app.get("/", lambda context: {"a": 1})
    client.get("/").json()
    """,
        "not callable|without brackets",
    ),
    Row(
        "good",
        "response.json of a page",
        """
    app.get("/", lambda context: context.response.html("<h1>Welcome back</h1>"))
    client.get("/").json
    """,
        "(?s)text/html.*Welcome",
    ),
    Row(
        "good",
        "requests: response.status_code",
        """
    client.get("/").status_code
    """,
        r"response\.status",
    ),
    Row(
        "good",
        "requests: response.ok",
        """
    client.get("/").ok
    """,
        r"response\.status",
    ),
    Row(
        "good",
        "requests: response.content",
        """
    client.get("/").content
    """,
        r"response\.body",
    ),
    Row(
        "good",
        "requests: response.raise_for_status()",
        """
    client.get("/").raise_for_status()
    """,
        r"\bstatus\b",
    ),
    Row(
        "good",
        "TestClient(WebApp): the class",
        """
    TestClient(WebApp)
    """,
        r"application = WebApp\(\)",
    ),
    Row(
        "good",
        "a body in pieces at a plain WSGI application",
        """
    def read_all(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))]
    answer = TestClient(read_all).post("/", body=iter([b"a", b"b"]))
    """,
        works="answer.body == b'ab'",
    ),
]

TABLE = {
    "guards": GUARDS,
    "redirects": REDIRECTS,
    "exceptions": EXCEPTIONS,
    "subclasses": SUBCLASSES,
    "values": VALUES,
    "names": NAMES,
    "handlers": HANDLERS,
    "tests": TESTS,
}


class Result(NamedTuple):
    row: Row
    verdict: str
    said: str


class Records(logging.Handler):
    """Keep what the log says from INFO up: the message, and that of the exception."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        exception = self.format(record).rpartition("\n")[2]
        self.lines += dict.fromkeys([record.getMessage(), exception])


def load(path: Path) -> types.ModuleType:
    """Return a module of a webapp.py. A mistake that nobody notices must not begin to serve."""
    module = types.ModuleType("webapp")
    module.__file__ = str(path)
    exec(compile(path.read_text("utf-8"), str(path), "exec"), vars(module))
    module.Server.serve_forever = lambda server: server.stop()
    return module


def run_row(row: Row, module: types.ModuleType) -> Result:
    """Run one program with the module, and judge what its author sees."""
    earlier = sys.modules.get("webapp")
    sys.modules["webapp"] = module
    records, logger = Records(), logging.getLogger("webapp")
    logger.addHandler(records)
    logger.propagate = False
    raised = ""
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "mistake.py")
            file.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(row.program), "utf-8")
            names = {"__name__": "mistake", "__file__": str(file)}
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(records)
        logger.propagate = True
        if earlier is None:
            del sys.modules["webapp"]
        else:
            sys.modules["webapp"] = earlier
    answers = [names[name] for name in ("answer", "page") if name in names]
    reasons = [found for answer in answers for found in re.findall("because: (.*)>", repr(answer))]
    # The author of a pattern that nothing matches does not see why.
    reasons = [reason for reason in reasons if reason != "no such route"]
    said = "\n".join(filter(None, [raised, *records.lines, *reasons]))
    has_failed = bool(raised or records.lines)
    if not raised and eval(row.works, names):
        verdict = "good"
    elif not has_failed and eval(row.opens, {"page": None, **names}):
        verdict = "open"
    elif re.search(row.advice, said):
        verdict = "good"
    else:
        verdict = "ok" if has_failed or reasons else "silent"
    return Result(row, verdict, said)


def run_all(path: Path, only: str = "") -> list[Result]:
    """Run each row whose habit or group has the text `only`."""
    module = load(path)
    return [
        run_row(row, module)
        for group, rows in TABLE.items()
        for row in rows
        if only.lower() in f"{group} {row.habit}".lower()
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("webapp", nargs="?", type=Path, help="the webapp.py to try")
    parser.add_argument("--list", choices=VERDICTS, help="list the rows with this verdict")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows that have this text")
    parser.add_argument("-v", action="store_true", help="print what each author sees")
    options = parser.parse_args(arguments)
    here = Path(__file__).resolve().parents
    path = options.webapp or next(p / "webapp.py" for p in here if (p / "webapp.py").is_file())
    results = run_all(path, options.only)
    differ = [result for result in results if result.verdict != result.row.expected]
    for result in results:
        row, verdict, said = result
        if result in differ or options.v or options.list == verdict:
            expected = f" (expected: {row.expected})" if result in differ else ""
            owner = f" ({row.owner})" if row.owner and verdict != "good" else ""
            print(f"{verdict:<7}{row.habit}{owner}{expected}")
            if options.v or result in differ:
                print(textwrap.indent(said or "nothing is said", " " * 11))
    counts = Counter(result.verdict for result in results)
    owners = Counter(r.row.owner or "ours" for r in results if r.verdict in ("silent", "open"))
    print(f"{len(results)} mistakes:", ", ".join(f"{counts[each]} {each}" for each in VERDICTS))
    print("silent or open:", ", ".join(f"{n} {owner}" for owner, n in owners.most_common()) or 0)
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
