# pyright: strict
"""A program that uses every public name: what type checkers know of an installed webapp.

`.ci/package` runs it, and has mypy and pyright check it, with the wheel that it has built.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import webapp
from webapp import (
    CodeException,
    Executor,
    Fields,
    Headers,
    HttpException,
    Markup,
    MethodNotAllowedException,
    NotFoundException,
    Request,
    Response,
    Route,
    Scope,
    Server,
    TestClient,
    TestResponse,
    UploadedFile,
    ValidationExecutor,
    WebApp,
    WebContext,
    same_origin,
)

if sys.version_info >= (3, 11):
    from typing import assert_type
else:

    def assert_type(value: Any, kind: object) -> Any:
        return value


class Shop(WebApp):
    def on_request(self, context: WebContext) -> None:
        context.state["started"] = True

    def on_complete(self, context: WebContext) -> None:
        assert_type(context.response.status, int)

    def resolve_status_code(self, cause: Exception) -> int:
        return 409 if isinstance(cause, CodeException) else super().resolve_status_code(cause)


class Audit(Executor):
    def execute(self, context: WebContext) -> None:
        if context.request.headers.get("X-Stop"):
            self.cancel()
        assert_type(self.canceled, bool)


class CheckItem(ValidationExecutor):
    secret_fields = ("password",)

    def validate(self, context: WebContext) -> None:
        if not context.request.form.get("name"):
            self.add_error("name", "is missing")
        assert_type(self.errors, Mapping[str, tuple[str, ...]])


app = Shop(secret_key="0123456789abcdef" * 2)


@app.error
def show(context: WebContext, cause: Exception, status_code: int) -> object:
    if isinstance(cause, HttpException):
        assert_type(cause.phrase, str)
        assert_type(cause.headers, Mapping[str, str])
    return Markup("<h1>{}</h1>").format(status_code)


with app.path("/items") as items:
    assert_type(items, Scope)
    items.before(same_origin)

    @items.get("/{number:int}", Audit)
    def item(context: WebContext, number: int) -> Response:
        request: Request = assert_type(context.request, Request)
        assert_type(request.headers, Fields[str])
        assert_type(request.query.parse("page", int, default=None), "int | None")
        assert_type(request.content_length, "int | None")
        assert_type(context.params, dict[str, Any])
        assert_type(context.response.headers, Headers)
        if number == 0:
            raise NotFoundException(public="No such item")
        link = context.url(item, number=number - 1)
        return context.response.html('<a href="{link}">back</a>', link=assert_type(link, str))

    @items.post("", CheckItem)
    def add(context: WebContext) -> Iterable[str]:
        file = assert_type(context.request.files["photo"], UploadedFile)
        assert_type(file.file, BinaryIO)
        yield f"{file.filename} has {assert_type(file.size, int)} bytes"


@app.get("/sold")
def sold(context: WebContext) -> None:
    raise CodeException("sold out")


def main() -> None:
    client = TestClient(app)
    answer: TestResponse = assert_type(client.get("/items/1"), TestResponse)
    assert assert_type(answer.status, int) == 200 and "/items/0" in assert_type(answer.text, str)
    assert client.get("/items/0").status == 404 and client.get("/sold").status == 409
    photo = ("a.txt", b"text", "text/plain")
    answer = client.post("/items", query={"name": "x"}, form={"name": "x"}, files={"photo": photo})
    assert answer.text == "a.txt has 4 bytes", answer.text
    assert MethodNotAllowedException(["GET"]).status_code == 405
    route: Route = assert_type(app.routes(), list[Route])[0]
    assert [assert_type(route.method, str), route.pattern] == ["POST", "/items"]
    with Server(app) as server:
        assert assert_type(server.url, str).endswith(str(assert_type(server.port, int)))


if __name__ == "__main__":
    main()
    unused = set(webapp.__all__) - set(globals())
    assert not unused, unused
