"""Uploads: a form with a file, its name and size, where to store it, and what happens if it is too
large.

Start it with `python3 -m webapp examples/upload.py` and open http://127.0.0.1:8000/. Files are
stored in the directory uploads below the current directory, or in the directory that the
environment variable UPLOADS names.

The client chooses the name and the type of a file. The page shows both, but the file is stored
under its SHA-256.

    $ curl -F file=@notes.txt -F 'note=for Ada' http://127.0.0.1:8000/
    ...<tr><th scope="row">Name</th><td>notes.txt</td></tr>
    <tr><th scope="row">Type</th><td>text/plain</td></tr>
    <tr><th scope="row">Size</th><td>12 bytes</td></tr>
    <tr><th scope="row">SHA-256</th><td>a948904f2f0f479b8f81...</td></tr>
    <tr><th scope="row">Note</th><td>for Ada</td></tr>...
    $ curl -i -F note=nothing http://127.0.0.1:8000/
    HTTP/1.1 422 Unprocessable Content
    Content-Type: text/html; charset=UTF-8

    ...<span id="file-error" class="error">Please choose a file.</span>...

Large files do not need memory, because they are written to the disk. But this application accepts
at most 1 MiB (max_upload_size). A larger form is answered with 413, and if its Content-Length is
too large, that happens before anything is read. Browsers get the form again:

    $ curl -i -F file=@large.bin http://127.0.0.1:8000/
    HTTP/1.1 413 Content Too Large
    Content-Type: text/plain; charset=UTF-8

    413 Content Too Large
    $ curl -H 'Accept: text/html' -F file=@large.bin http://127.0.0.1:8000/
    ...<span id="file-error" class="error">This file is too big. The limit is 1 MiB.</span>...
"""

# search words: multipart/form-data, input type=file, maximum size, 413, save a file

import hashlib
import os
from pathlib import Path

from webapp import Markup, ValidationExecutor, WebApp

UPLOADS = Path(os.environ.get("UPLOADS", "uploads"))

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
{content}
</body>
</html>
"""
FORM = Markup("""<h1>Upload</h1>
<form method="post" action="/" enctype="multipart/form-data">
<p><label for="file">A file of at most 1 MiB</label>
<input type="file" id="file" name="file"{state}>{error}
<p><label for="note">A note (optional)</label>
<input id="note" name="note" value="{note}">
<p><button>Upload</button>
</form>""")
STATE = Markup(' aria-invalid="true" aria-describedby="file-error" autofocus')
ERROR = Markup('\n<span id="file-error" class="error">{}</span>')
TABLE = Markup('<h1>Uploaded</h1>\n<table>\n{}</table>\n<p><a href="/">Another one</a>')
ROW = Markup('<tr><th scope="row">{}</th><td>{}</td></tr>\n')

app = WebApp(max_upload_size=2**20)
app.static("/static", Path(__file__).parent / "static")


def show_form(context, error="", note=""):
    title, state = ("Error: Upload", STATE) if error else ("Upload", "")
    content = FORM.format(state=state, error=error and ERROR.format(error), note=note)
    context.response.html(PAGE, title=title, content=content)


@app.get("/")
def form(context):
    show_form(context)


class UploadForm(ValidationExecutor):
    def validate(self, context):
        # A file input that was left empty arrives as a file without a name.
        if "file" not in context.request.files or not context.request.files["file"].filename:
            self.add_error("file", "Please choose a file.")

    def on_cancel(self, context):
        show_form(context, *self.errors["file"], note=context.request.form.get("note", ""))


@app.post("/", UploadForm)
def receive(context):
    upload = context.request.files["file"]
    digest = hashlib.sha256()
    for piece in iter(lambda: upload.file.read(65536), b""):
        digest.update(piece)
    UPLOADS.mkdir(parents=True, exist_ok=True)
    upload.save(UPLOADS / digest.hexdigest())
    rows = {
        "Name": upload.filename,
        "Type": upload.content_type,
        "Size": f"{upload.size:,} bytes",
        "SHA-256": digest.hexdigest(),
        "Note": context.request.form.get("note", ""),
    }
    table = [ROW.format(name, value) for name, value in rows.items()]
    context.response.html(PAGE, title="Uploaded", content=TABLE.format(table))


@app.error
def say_how_much(context, cause, status_code):
    # Browsers get a page. Other clients get the default response, "413 Content Too Large".
    if status_code == 413 and context.request.accepts("text/plain", "text/html") == "text/html":
        show_form(context, "This file is too big. The limit is 1 MiB.")
