"""Files: a folder as a web site and as downloads, with byte ranges and conditional requests.

Start it with `python3 -m webapp examples/files.py` and open http://127.0.0.1:8000/. It shows the
folder static, or the folder that the environment variable FOLDER names. It serves nothing outside
of the folder, and no files whose names begin with a dot.

    $ curl -I http://127.0.0.1:8000/files/style.css
    HTTP/1.1 200 OK
    Content-Type: text/css; charset=UTF-8
    Accept-Ranges: bytes
    ETag: ...
    Last-Modified: ...
    $ curl -i -r 1-4 http://127.0.0.1:8000/files/style.css
    HTTP/1.1 206 Partial Content
    Content-Range: bytes 1-4/...

    root
    $ curl -i -H 'If-None-Match: *' http://127.0.0.1:8000/files/style.css
    HTTP/1.1 304 Not Modified
    $ curl -I http://127.0.0.1:8000/download/style.css
    HTTP/1.1 200 OK
    Content-Disposition: attachment; filename="style.css"
    $ curl http://127.0.0.1:8000/files/..%2Ffiles.py
    404 Not Found
    $ curl http://127.0.0.1:8000/download/..%2Ffiles.py
    404 Not Found
"""

# search words: directory listing, static folder, css, js, images, send_from_directory, send_file,
#   video, seek, resume, PDF

import os
from pathlib import Path
from urllib.parse import quote

from webapp import Markup, WebApp

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
<h1>{title}</h1>
<table>
<thead><tr><th scope="col">File<th scope="col" class="size">Bytes<th scope="col">Download</thead>
<tbody>
{rows}
</table>
</body>
</html>
"""

ROW = Markup(
    '<tr><td><a href="files/{link}">{name}</a><td class="size">{size:,}'
    '<td><a href="download/{link}" aria-label="Download {name}">Save</a>'
)


def make_app(folder):
    folder = Path(folder).resolve()
    app = WebApp()
    app.static("/static", Path(__file__).parent / "static")

    def names():
        """Return the names of the files, except those that are not served or that cannot be written
        in a URL."""
        files = (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        names = sorted(path.name for path in files if not path.name.startswith("."))
        return [name for name in names if name == name.encode(errors="replace").decode()]

    @app.before
    def no_sniffing(context):
        # Browsers must not guess a type other than our Content-Type.
        context.response.header("X-Content-Type-Options", "nosniff")

    @app.get("/")
    def index(context):
        rows = [
            ROW.format(link=quote(name), name=name, size=(folder / name).stat().st_size)
            for name in names()
        ]
        context.response.html(PAGE, title=folder.name, rows=Markup("\n").join(rows))

    @app.get("/download/{name}")
    def download(context, name):
        # A name may be "../x". With root, such a name is answered with 404, as in static.
        context.response.file(name, root=folder, filename=Path(name).name)

    # /files/a/b.txt is a/b.txt in the folder. A folder that contains an index.html is a page.
    app.static("/files", folder)
    return app


app = make_app(os.environ.get("FOLDER") or Path(__file__).parent / "static")
