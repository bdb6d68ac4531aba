"""A JSON API on sqlite3: statuses for the application's own exceptions, and every error as a
"problem detail".

Start it with `python3 -m webapp examples/todo_api.py`. It keeps its todos in the file
todos.sqlite3.

    $ curl -i -H 'Content-Type: application/json' -d '{"title": "Buy milk"}' \\
        http://127.0.0.1:8000/todos
    HTTP/1.1 201 Created
    Location: /todos/1

    {"id": 1, "title": "Buy milk", "done": false}
    $ curl -X POST http://127.0.0.1:8000/todos/1/done
    {"id": 1, "title": "Buy milk", "done": true}
    $ curl http://127.0.0.1:8000/todos
    {"todos": [{"id": 1, "title": "Buy milk", "done": true}]}

A single error hook in the outermost scope turns every error into a "problem detail" (RFC 9457),
even the one for an unknown path. A failed validation does not reach the hook, because its executor
builds the response.

    $ curl -X POST http://127.0.0.1:8000/todos/1/done
    {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "Todo 1 is done already."}
    $ curl http://127.0.0.1:8000/nowhere
    {"type": "about:blank", "title": "Not Found", "status": 404}
    $ curl -H 'Content-Type: application/json' -d '{"title": ""}' http://127.0.0.1:8000/todos
    {"type": "/problems/invalid", "title": "Not valid", "status": 422, "errors": {"title": ...
    $ curl -i -X DELETE http://127.0.0.1:8000/todos/1
    HTTP/1.1 204 No Content
"""

# search words: REST, CRUD, PUT, DELETE, resource, JSON body

import os
import sqlite3

from webapp import HttpException, ValidationExecutor, WebApp

DATABASE = os.environ.get("TODOS", "todos.sqlite3")


class TodoError(Exception):
    """The client did something wrong. The text of the exception is written for the client."""


class NoSuchTodo(TodoError): ...


class AlreadyDone(TodoError): ...


class TodoApp(WebApp):
    def resolve_status_code(self, cause):
        # sqlite3 raises UnicodeEncodeError for half of a surrogate pair, which is possible in JSON
        # but not in UTF-8.
        statuses = {NoSuchTodo: 404, AlreadyDone: 409, UnicodeEncodeError: 422}
        return statuses.get(type(cause)) or super().resolve_status_code(cause)


app = TodoApp()


def problem(context, type, title, status, **members):
    context.response.code(status).header("Content-Type", "application/problem+json")
    context.response.json({"type": type, "title": title, "status": status, **members})


@app.error
def error_as_problem(context, cause, status_code):
    # Only our own exceptions have a text that clients may read.
    detail = {"detail": str(cause)} if isinstance(cause, TodoError) else {}
    problem(context, "about:blank", HttpException(status_code).phrase, status_code, **detail)


class TodoInput(ValidationExecutor):
    def validate(self, context):
        # Raises a 415 or a 400 if the body is not a JSON object.
        title = context.request.json_object.get("title")
        if not isinstance(title, str) or not 1 <= len(title.strip()) <= 200:
            self.add_error("title", "1 to 200 characters")

    def on_cancel(self, context):
        problem(context, "/problems/invalid", "Not valid", 422, errors=self.errors)


def connect(context):
    """Open a connection for this request. It is closed when the response was sent."""
    connection = sqlite3.connect(DATABASE)
    context.on_close(connection.close)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS todo (id INTEGER PRIMARY KEY, title TEXT, done "
        "INTEGER DEFAULT 0)"
    )
    return connection


def select(connection, condition="1", *values):
    rows = connection.execute(
        f"SELECT id, title, done FROM todo WHERE {condition} ORDER BY done, id", values
    )
    return [{"id": id, "title": title, "done": bool(done)} for id, title, done in rows]


@app.get("/todos")
def list_todos(context):
    return {"todos": select(connect(context))}


@app.post("/todos", TodoInput)
def create(context):
    title = context.request.json_object["title"].strip()
    with connect(
        context
    ) as connection:  # a transaction: committed at its end, rolled back by an exception
        id = connection.execute("INSERT INTO todo (title) VALUES (?)", (title,)).lastrowid
    context.response.code(201).header("Location", context.url(show, id=id))
    return show(context, id)


@app.get("/todos/{id:int}")
def show(context, id):
    for todo in select(connect(context), "id = ?", id):
        return todo
    raise NoSuchTodo(f"There is no todo {id}.")


@app.post("/todos/{id:int}/done")
def finish(context, id):
    with connect(context) as connection:
        changed = connection.execute(
            "UPDATE todo SET done = 1 WHERE id = ? AND NOT done", (id,)
        ).rowcount
    todo = show(context, id)
    if not changed:
        raise AlreadyDone(f"Todo {id} is done already.")
    return todo


@app.delete("/todos/{id:int}")
def delete(context, id):
    show(context, id)
    with connect(context) as connection:
        connection.execute("DELETE FROM todo WHERE id = ?", (id,))
