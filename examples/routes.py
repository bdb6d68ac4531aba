"""Routes: patterns and their parameters, methods, and scopes whose hooks run for exactly the routes
that are written in them.

Start it with `python3 -m webapp examples/routes.py`. The page http://127.0.0.1:8000/ lists the
routes:

    $ curl http://127.0.0.1:8000/
    GET    /
    GET    /books/new
    GET    /books/{id:int}
    PUT    /books/{id:int}
    GET    /books/{title}
    GET    /files/{name:path}
    GET    /staff/books/{id:int}
    GET    /staff/rota

If several patterns match, a literal segment wins over `{id:int}`, `{id:int}` over `{title}`, and
`{title}` over `{name:path}`. The order in which you write the routes does not matter. Handlers get
decoded parameters. Empty segments and a slash at the end of a path make no difference.

    $ curl http://127.0.0.1:8000/books/new
    A form for a new book
    $ curl http://127.0.0.1:8000/books/42/
    {"id": 42}
    $ curl http://127.0.0.1:8000/books/Middlemarch%20I
    The book called Middlemarch I
    $ curl http://127.0.0.1:8000/files/2024/May/notes.txt
    The file 2024/May/notes.txt

A GET route also answers HEAD. Any other method is answered with a 405 that lists the methods of the
path. A path that matches no pattern is answered with 404.

    $ curl -I http://127.0.0.1:8000/books/42
    HTTP/1.1 200 OK
    Content-Type: application/json
    Content-Length: 10
    $ curl -i -X DELETE http://127.0.0.1:8000/books/42
    HTTP/1.1 405 Method Not Allowed
    Allow: GET, HEAD, PUT

    405 Method Not Allowed
    $ curl http://127.0.0.1:8000/shelves
    404 Not Found

The hooks of a scope run for the routes inside it and for no others. `before` hooks run from the
outermost scope inwards, and `after` hooks run from the innermost scope outwards.

    $ curl http://127.0.0.1:8000/staff/rota
    401 Unauthorized
    $ curl -i -H 'Authorization: Bearer secret' http://127.0.0.1:8000/staff/books/42
    HTTP/1.1 200 OK
    X-Robots-Tag: noindex
    Cache-Control: no-store

    Book 42, as the staff sees it
"""

# search words: url parameter, converter, 405, HEAD, OPTIONS, wildcard

from hmac import compare_digest

from webapp import HttpException, WebApp

app = WebApp()


@app.get("/")
def index(context):
    return "".join(f"{route.method:6} {route.pattern}\n" for route in app.routes())


@app.get("/books/new")
def new_book(context):
    return "A form for a new book"


@app.get("/books/{id:int}")
@app.put("/books/{id:int}")
def book(context, id):
    return {"id": id}


@app.get("/books/{title}")
def book_by_title(context, title):
    return f"The book called {title}"


@app.get("/files/{name:path}")
def file(context, name):
    return f"The file {name}"


with app.path("/staff") as staff:

    @staff.before
    def only_staff(context):
        given = context.request.headers.get("Authorization", "")
        if not compare_digest(given.encode(), b"Bearer secret"):
            raise HttpException(401, headers={"WWW-Authenticate": "Bearer"})

    @staff.after
    def keep_out_robots(context):
        context.response.header("X-Robots-Tag", "noindex")

    @staff.get("/rota")
    def rota(context):
        return "Monday: everybody"

    with staff.path("/books") as staff_books:

        @staff_books.after
        def keep_out_caches(context):
            context.response.header("Cache-Control", "no-store")

        @staff_books.get("/{id:int}")
        def staff_book(context, id):
            return f"Book {id}, as the staff sees it"
