"""What Sphinx needs beside the documents: pages of lessons and reference, the menu, links to files.

A document without a place in the menu, a public name without a group, and a public attribute
without a description end the build with their names.
"""

from __future__ import annotations

import ast
import inspect
import posixpath
import re
from pathlib import Path

from docutils import nodes
from search import LESSONS, ROOT, WORDS, getdoc, list_documents, read
from sphinx.errors import ExtensionError
from sphinx.ext.autodoc import ModuleAnalyzer
from sphinx.project import Project

import webapp


def toctree(pages, caption=""):
    """Return the directive that puts pages into the menu, under another name if there is one."""
    lines = ["", ".. toctree::", "   :hidden:", f"   :caption: {caption}" if caption else "", ""]
    return "\n".join([*lines, *(f"   {page}" for page in pages), ""]).replace("\n\n\n", "\n\n")


# ---- the documents -------------------------------------------------------------------------------


class Sources(Project):
    """The documents at their places in the repository, and not below the folder of this file."""

    def __init__(self, app):
        super().__init__(app.srcdir, app.config.source_suffix)
        self.documents = list_documents(app.config.reference)
        self.page_of = {path: page for page, path in self.documents.items()}
        self.page_of["webapp.py"] = "reference/index"

    def discover(self, *_):
        self._docname_to_path = {page: f"../{path}" for page, path in self.documents.items()}
        self._path_to_docname = {f"../{path}": page for path, page in self.page_of.items()}
        self.docnames = {*self.documents}
        return self.docnames


def check_menu(config, documents):
    listed = {page for pages in config.menu.values() for page in pages}
    listed |= {"index", *(f"recipes/{name}" for name in config.recipes)}
    listed |= {page for page in documents if page.split("/")[0] in ("lessons", "reference")}
    for page, path in documents.items():
        if page not in listed:
            raise ExtensionError(f"{path} has no place in `menu` or `recipes` of .docs/conf.py")
    for page in sorted(listed - documents.keys()):
        raise ExtensionError(f"`menu` or `recipes` of .docs/conf.py has {page}, which is nowhere")


# ---- docstrings ----------------------------------------------------------------------------------


def as_rst(docstring):
    """Return a docstring as reStructuredText: `names` as code, what is indented as a program."""
    done = []
    for part in docstring.strip("\n").split("\n\n"):
        if not part.startswith("    "):
            done.append(escape(part))
        elif done and done[-1].startswith(".. code-block::"):
            done[-1] += f"\n\n{part}"
        else:
            language = "console" if part.lstrip().startswith("$ ") else "text"
            done.append(f".. code-block:: {language}\n\n{part}")
    return "\n\n".join(done)


def escape(text):
    pieces = re.split(r"(`[^`]+`)", text)
    for number, piece in enumerate(pieces):
        if number % 2:
            pieces[number] = f"`{piece}`"
        else:
            pieces[number] = re.sub(r"[\\*|]|(?<=\w)_\b", r"\\\g<0>", piece)
    return "".join(pieces)


def write_lesson(name):
    source = read(f"examples/{name}.py")
    docstring = ast.get_docstring(ast.parse(source))
    title = f"{name}.py: {dict(LESSONS)[name].replace('``', '')}"
    program = WORDS.sub("", source.split('"""', 2)[2]).strip("\n")
    lines = "\n".join(f"   {line}".rstrip() for line in program.splitlines())
    return (
        f"{title}\n{'=' * len(title)}\n\n{as_rst(docstring)}\n\nThe program\n-----------\n\n"
        f".. code-block:: python\n\n{lines}\n"
    )


def write_reference(group, reference):
    if group == "index":
        pages = [f"- :doc:`{title} <{page}>`: " for page, (title, _) in reference.items()]
        pages = [
            page + ", ".join(f":py:obj:`~webapp.{name}`" for name in names)
            for page, (_, names) in zip(pages, reference.values())
        ]
        start = "All that is public, from the docstrings of ``webapp.py``."
        text = "\n".join(["Reference", "=========", "", start, "", *pages, ""])
        return f"{text}\n{toctree(reference)}"
    title, names = reference[group]
    parts = [title, "=" * len(title), "", ".. currentmodule:: webapp", ""]
    for name in names:
        kind = "class" if inspect.isclass(getattr(webapp, name)) else "function"
        parts += [name, "-" * len(name), "", f".. auto{kind}:: {name}"]
        parts += ["   :members:", ""] if kind == "class" else [""]
    return "\n".join(parts)


def check_reference(reference):
    grouped = [name for _, names in reference.values() for name in names]
    for name in webapp.__all__:
        if name not in grouped:
            raise ExtensionError(f"{name} of __all__ has no group in `reference` of .docs/conf.py")
    classes = [name for name in grouped if inspect.isclass(getattr(webapp, name))]
    bare = [f"{name}.{member}" for name in classes for member in undescribed(name)]
    if bare:
        raise ExtensionError(f"no description in webapp.py: {', '.join(bare)}")


def undescribed(name):
    """Return the public members of a class that nothing describes, a base of it included."""
    made = getattr(webapp, name)
    described = ModuleAnalyzer.for_module("webapp").find_attr_docs()
    bare = []
    for member in dict.fromkeys([*vars(made), *vars(made).get("__annotations__", ())]):
        value = vars(made).get(member)
        known = any((base.__name__, member) in described for base in made.__mro__)
        is_advice = member in vars(made) and not hasattr(made, member)
        if member[0] != "_" and not (known or getdoc(value) or hasattr(str, member) or is_advice):
            bare.append(member)
    return bare


def process_docstring(app, what, name, thing, options, lines):
    lines[:] = as_rst("\n".join(lines)).splitlines()
    if what == "class":
        bases = [base.__name__ for base in thing.__bases__ if base.__name__ in webapp.__all__]
        for base in bases:
            lines += ["", f"A subclass of :py:class:`~webapp.{base}`, whose members it has.", ""]


# The program makes these, and no author.
MADE_BY_CALLS = (
    "Request",
    "Response",
    "Route",
    "Scope",
    "TestResponse",
    "UploadedFile",
    "WebContext",
)


def process_signature(app, what, name, thing, options, signature, returns):
    """Show no private name, and of a default that has no name only that there is one."""
    if what == "class" and name.rpartition(".")[2] in MADE_BY_CALLS:
        return "", None
    signature = re.sub(r"\*unnamed", "*", signature or "")
    signature = re.sub(r"(, )?\*\*unknown", "", signature)
    signature = re.sub(r"=(Ellipsis|<[^>]*>|_\w+)", "=...", signature)
    if re.search(r"\b_\w|<", signature):
        raise ExtensionError(f"the signature of {name} has a private name: {signature}")
    return signature, None


def skip_member(app, what, name, thing, skip, options):
    """Leave out what `Markup` has from str."""
    return True if hasattr(str, name) and not getattr(thing, "__doc__", None) else None


# ---- links ---------------------------------------------------------------------------------------


def read_source(app, docname, source):
    folder, _, name = docname.partition("/")
    if docname == "index":
        menus = (toctree(pages, caption) for caption, pages in app.config.menu.items())
        source[0] = "\n".join([source[0], *menus])
    elif docname == "lessons/index":
        source[0] += toctree([f"{name}.py <{name}>" for name, _ in LESSONS])
    elif docname == "recipes/index":
        titles = re.findall(r"^(.+)\n-+\n", source[0], re.M)
        source[0] += toctree(map("{} <{}>".format, titles, app.config.recipes))
    elif folder == "lessons":
        source[0] = write_lesson(name)
    elif folder == "reference":
        source[0] = write_reference(name, app.config.reference)


def drop_contents(app, doctree):
    """The site shows the contents of a page beside it."""
    for topic in [*doctree.findall(nodes.topic)]:
        if "contents" in topic["classes"]:
            topic.parent.remove(topic)
    for title in doctree.findall(nodes.title):
        title.attributes.pop("refid", None)  # which led there


# What a page links to, beside the pages: path to the place of its copy. The playground reads this.
FILES = {"webapp.py": "webapp.py"}


def as_text(found):
    """Let a browser show a file that it would save."""
    return f"{found[0]}.txt" if found[0] in (".md", ".py") else ""


def resolve_links(app, doctree, docname):
    """Let links to files lead to their pages, or to a copy of the file."""
    project = app.env.project
    folder = posixpath.dirname(project.documents[docname])
    for node in doctree.findall(nodes.reference):
        target, _, anchor = node.get("refuri", "").partition("#")
        if not target or "refdoc" in node or re.match(r"[a-z]+:", target) or node.get("internal"):
            continue
        path = posixpath.normpath(posixpath.join(folder, target))
        page = project.page_of.get(path)
        if page is None:
            if not (ROOT / path).is_file():
                raise ExtensionError(f"{project.documents[docname]} links to {path}: no such file")
            FILES[path] = re.sub(r"^examples/|^\.|\.md$|\.py$", as_text, path)
            here = posixpath.dirname(docname)
            node["refuri"] = posixpath.relpath(FILES[path], here or ".")
        else:
            here = app.builder.get_relative_uri(docname, page)
            node["refuri"] = here + (f"#{anchor}" if anchor else "")
        node["internal"] = True


def copy_files(app, failure):
    if failure is None:
        for path, place in FILES.items():
            copy = Path(app.outdir, place)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / path).read_bytes())


def take_over(app):
    app.project = app.env.project = Sources(app)
    check_menu(app.config, app.project.documents)
    check_reference(app.config.reference)


def setup(app):
    for name in ("menu", "recipes", "reference"):
        app.add_config_value(name, None, "env", (dict, list))
    app.connect("builder-inited", take_over)
    app.connect("source-read", read_source)
    app.connect("doctree-read", drop_contents)
    app.connect("doctree-resolved", resolve_links)
    app.connect("build-finished", copy_files)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
    return {"parallel_read_safe": False}
