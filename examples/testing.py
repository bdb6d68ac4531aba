"""Testing an application: TestClient calls it in this process, without a server and without a port.

This file contains a small application and its tests. You can run them with or without pytest:

    $ python3 -m pytest examples/testing.py
    $ python3 -m examples.testing
    5 tests passed

The client shows you what a browser would get, including failures. If you want to see the exception
behind a 500, create the client with raise_errors=True. You can also serve the application (`python3
-m webapp examples/testing.py`) and send requests yourself:

    $ curl -d text=Milk http://127.0.0.1:8000/notes
    {"id": 1, "text": "Milk"}
    $ curl http://127.0.0.1:8000/notes/2
    404 Not Found
"""

# search words: unit test, pytest, test_client, mock, post JSON

from webapp import NotFoundException, TestClient, ValidationExecutor, WebApp


class NoteForm(ValidationExecutor):
    def validate(self, context):
        if not context.request.form.get("text", "").strip():
            self.add_error("text", "Please write something.")


def make_app():
    """Make an application with its own notes, so that no test sees the notes of another test."""
    app = WebApp(secret_key="only for tests, and no secret")
    notes = []

    @app.post("/notes", NoteForm)
    def create(context):
        notes.append(context.request.form["text"])
        context.session["written"] = context.session.get("written", 0) + 1
        context.response.code(201).header("Location", context.url(show, id=len(notes)))
        return {"id": len(notes), "text": notes[-1]}

    @app.get("/notes/{id:int}")
    def show(context, id):
        if not 1 <= id <= len(notes):
            raise NotFoundException
        return {"id": id, "text": notes[id - 1]}

    @app.get("/written")
    def written(context):
        return {"written": context.session.get("written", 0)}

    @app.get("/broken")
    def broken(context):
        return {"half": 1 / 0}

    return app


app = make_app()


def test_a_note_can_be_read_where_location_says():
    client = TestClient(make_app())
    created = client.post("/notes", form={"text": "Milk"})
    assert created.status == 201
    assert client.get(created.headers["Location"]).json == {"id": 1, "text": "Milk"}


def test_an_empty_note_is_refused_and_the_form_comes_back():
    response = TestClient(make_app()).post("/notes", form={"text": " "})
    assert response.status == 422
    assert response.json == {"text": " ", "validation": {"text": ["Please write something."]}}


def test_a_missing_note_is_answered_with_404():
    response = TestClient(make_app()).get("/notes/1", headers={"Accept": "application/json"})
    assert response.json == {"error": {"status": 404, "message": "Not Found"}}


def test_each_client_has_its_own_session():
    app = make_app()
    ada, grace = TestClient(app), TestClient(app)
    ada.post("/notes", form={"text": "Milk"})
    assert ada.get("/written").json == {"written": 1}
    assert grace.get("/written").json == {"written": 0}


def test_a_failure_reveals_nothing_unless_a_test_asks():
    assert TestClient(make_app()).get("/broken").text == "500 Internal Server Error"
    try:
        TestClient(make_app(), raise_errors=True).get("/broken")
    except ZeroDivisionError as error:
        assert "division" in str(error)  # its traceback shows the line
    else:
        raise AssertionError("nothing was raised")


if __name__ == "__main__":
    tests = [test for name, test in globals().items() if name.startswith("test_")]
    for test in tests:
        test()
    print(f"{len(tests)} tests passed")
