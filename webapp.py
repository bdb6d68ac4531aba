# SPDX-License-Identifier: MIT
"""A single-file web framework that needs only Python 3.9 or newer and runs on any WSGI server.

    from webapp import WebApp

    app = WebApp()

    @app.get("/hello/{name}")
    def hello(context, name):
        return f"Hello {name}"

    if __name__ == "__main__":
        app.run(port=8000)

Its speciality is turning failures into HTTP responses. Every request takes the same path through a
single dispatcher (`WebApp.__call__`). Hooks belong to the scope in which you declare them. The
client always gets a complete response, which contains no internal details unless your application
puts them there.

There are two ways to read this file. You can read it from top to bottom: each section uses only
the sections above it, and opens with the question that it answers. Or you can follow a request,
starting at `WebApp.__call__`.

    texts      words for people, header values, statuses and exceptions, fields and uploads,
               JSON, HTML
    messages   the request, origins, contents, sessions, the response
    dispatch   executors, the context, patterns and routes, the server's side of WSGI,
               files and mounts, scopes, the log, the application
    testing    the test client
    serving    the head of a request, the body of a request, access lines,
               the accounts of memory, one run of the application, a connection, TLS,
               the thread pool, the server, the command line
"""
# Copyright (c) 2026 the webapp.py authors
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
# associated documentation files (the "Software"), to deal in the Software without restriction,
# including without limitation the rights to use, copy, modify, merge, publish, distribute,
# sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all copies or
# substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
# NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
# NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
# DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
# OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

from __future__ import annotations

import sys

# Python 3.7 and older report the next line as a syntax error, and so show it to the user.
if (python_3_9_is_needed := (3, 9)) > sys.version_info:
    sys.exit(
        "webapp.py needs Python 3.9 or newer, and this is Python {}.{}".format(*sys.version_info)
    )

import abc
import cmath
import copyreg
import errno
import functools
import inspect
import io
import ipaddress
import itertools
import json
import logging
import math
import os
import re
import selectors
import signal
import socket
import stat
import string
import struct
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from datetime import datetime, timezone
from functools import lru_cache, partial, partialmethod, update_wrapper
from http import HTTPStatus
from io import BytesIO
from numbers import Number
from os.path import basename, exists, isdir, isfile, islink, realpath, samefile
from time import monotonic
from types import FunctionType, MappingProxyType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Generic,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    Union,
    cast,
    overload,
)
from urllib.parse import quote, urlencode, urljoin
from wsgiref.handlers import SimpleHandler, format_date_time
from wsgiref.util import FileWrapper, setup_testing_defaults

if sys.platform == "darwin":
    import fcntl

# Modules that few programs need, such as ssl, argparse, subprocess and hmac, are imported where
# they are used.
if TYPE_CHECKING:
    import ssl
    from types import FrameType, TracebackType

    if sys.version_info >= (3, 14):
        from string.templatelib import Template
    else:
        Template = str

__version__ = "2.0.0"

__all__ = [
    "CodeException",
    "Executor",
    "Fields",
    "Headers",
    "HttpException",
    "Markup",
    "MethodNotAllowedException",
    "NotFoundException",
    "Request",
    "Response",
    "Route",
    "Scope",
    "Server",
    "TestClient",
    "TestResponse",
    "UploadedFile",
    "ValidationExecutor",
    "WebApp",
    "WebContext",
    "same_origin",
]

_T = TypeVar("_T")
_Error = TypeVar("_Error", bound=Exception)
_Converted = TypeVar("_Converted")
_Default = TypeVar("_Default")
_Values = dict[str, Any]  # keyed by name
_Environ = dict[str, Any]
_TextPair = tuple[str, str]  # (name, value) of a field, or (kind, text) of a segment
_TextPairs = list[_TextPair]
_HeaderPairs = dict[str, tuple[_TextPair, ...]]  # keyed by lowercase name
_Callback = Callable[[], object]
_ReadFunction = Callable[[int], bytes]
_StartResponse = Callable[..., Any]
_WSGIApplication = Callable[[_Environ, _StartResponse], Iterable[bytes]]


# ---- words for people --------------------------------------------------------
#
# How do messages for the author of an application refer to a function, a value or a line of code?
#
#     _name(handler)     "hello"
#     _value(value)      "[1, 2, 3]"
#     _place(handler)    "hello (/srv/app.py:7)"
#     _here()            "/srv/app.py:12", the line that called us
#     _mistake(TypeError, "no such thing")    TypeError("no such thing (/srv/app.py:12)")
#
# `_printable` escapes text, so that no client can forge a log line.

# This is a library, so it sets neither a handler nor a level for its loggers.
_LOG, _ACCESS = logging.getLogger("webapp"), logging.getLogger("webapp.access")
_FILE = sys._getframe().f_code.co_filename


def _enable_loggers() -> None:
    """Enable our loggers again if a logging configuration has disabled them.

    By default, `logging.config` disables all existing loggers. If only `webapp.access` is disabled,
    it stays disabled, because the program must have done that on purpose.
    """
    if _LOG.disabled:
        _LOG.disabled = _ACCESS.disabled = False


def _printable(text: str) -> str:
    """Return `text` on one line, with all non-printable characters escaped."""
    # repr() also escapes backslashes and quotes, but the pattern does not match them.
    return (
        text if text.isprintable() else re.sub("[^ -~]+", lambda found: repr(found[0])[1:-1], text)
    )


def _name(thing: object) -> str:
    name = None
    with suppress(Exception):  # a proxy may be unbound
        name = getattr(thing, "__qualname__", None)
    if isinstance(name, str):
        return _printable(name)
    if isinstance(thing, partial):
        return f"a partial of {_name(thing.func)}"
    return f"an object of {_printable(type(thing).__qualname__)}"


def _value(value: object, longest: int = 80) -> str:
    """Return the name of a function or class, or the escaped, shortened repr of any other value."""
    try:
        return _name(value) if hasattr(value, "__qualname__") else _printable(repr(value))[:longest]
    except Exception:
        return f"<{type(value).__qualname__}, whose repr() fails>"


def _caller() -> FrameType:
    """Return the frame of the code that called into this file."""
    frame = sys._getframe(1)
    # ABCMeta calls __init_subclass__, and functools calls partial methods.
    between = (globals(), vars(abc), vars(functools))
    while frame.f_back is not None and any(frame.f_globals is each for each in between):
        frame = frame.f_back
    return frame


def _here() -> str:
    """Return the file and line of the code that called into this file."""
    frame = _caller()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _mistake(kind: type[_Error], text: str) -> _Error:
    """Return an exception whose message names the line of code that called into this file."""
    return kind(f"{text} ({_here()})")


def _place(function: Any) -> str:
    """Return the name of a function, with its file and line unless it is defined in this file."""
    code: Any = None
    with suppress(Exception):  # a proxy may be unbound
        inner = function
        while isinstance(inner, partial):
            inner = inner.func
        inner = inspect.unwrap(inner)
        # A callable object has its code in `__call__`, and a generator has it in `gi_code`.
        call = getattr(type(inner), "__call__", None)  # noqa: B004
        code = getattr(
            inner, "__code__", getattr(call, "__code__", getattr(inner, "gi_code", None))
        )
    if getattr(code, "co_filename", _FILE) == _FILE:
        return _name(function)
    return f"{_name(function)} ({_printable(code.co_filename)}:{code.co_firstlineno})"


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """Skip the entries for this file at the start of a traceback; return the rest, or None."""
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def _check_text(what: str, value: object, hint: str = "") -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {_value(value)}{hint}")


def _check_number(name: str, value: Any, whole: bool = True) -> Any:
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{name} must be {kind}, not {_value(value)}")
    if not value >= 0:  # true for a NaN as well
        raise ValueError(f"{name} must be {kind}, 0 or greater, not {value}")
    return value


_check_seconds = partial(_check_number, whole=False)


def _check_flags(**flags: object) -> None:
    """Raise TypeError for a flag such as "no" or None; allow 0 and 1, which databases return."""
    for name, value in flags.items():
        if not isinstance(value, int) or value not in (0, 1):
            raise TypeError(f"{name} must be True or False, not {_value(value)}")


def _explain(error: Exception, what: str, source: object = None) -> None:
    """Prefix the message of a built-in exception with some context."""
    if type(error) in (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        error.args = (
            f"{what}: {error}" if source is None else f"{what} of {_place(source)}: {error}",
        )


# Names from Flask, FastAPI, Bottle, requests and similar libraries, each with what to write here
# instead. They are grouped by the class in which application authors would look for them.
_KNOWN_ELSEWHERE = {
    "Scope": {
        "errorhandler": "@app.error",
        "exception_handler": "@app.error",
        "before_request": "@app.before",
        "use": "@app.before",
        "middleware": "@app.before",
        "after_request": "@app.after",
        "teardown_request": "@app.after",
        "register_blueprint": "app.path(prefix, function)",
        "include_router": "app.path(prefix, function)",
        "add_url_rule": "app.get(pattern, handler)",
        "stop": "server.stop(), with server = Server(app)",
        "serve_forever": "app.run(port=8000)",
        "listen": "app.run(port=8000)",
        "test_client": "TestClient(app)",
        "config": "the arguments of WebApp()",
        "logger": 'logging.getLogger("webapp")',
        "url_for": "context.url(handler)",
        "_app": "super().__init__() at the beginning of __init__",
    },
    "WebContext": {
        "abort": "raise HttpException(404)",
        **dict.fromkeys(
            ("query", "form", "files", "headers", "cookies", "json", "body", "method", "path"),
            "context.request, which has the input",
        ),
        "redirect": "context.response",
        "html": "context.response",
        "text": "context.response",
        "send": "context.response",
        "status": "context.response",
        "g": 'context.state["user"]',
        "user": 'context.state["user"]',
        "url_for": "context.url(handler)",
    },
    "Request": {
        "args": "request.query",
        "query_params": "request.query",
        "GET": "request.query",
        "forms": "request.form",
        "POST": "request.form",
        "params": "request.body_all()",
        "path_params": "context.params",
        "view_args": "context.params",
        "remote_addr": "request.remote_address",
        "client": "request.remote_address",
        "get_header": 'request.headers.get("X-Name")',
        "get_cookie": 'request.cookies.get("name")',
        "get_json": "request.json",
        "is_json": "request.content_type",
        "get_data": "request.body",
        "data": "request.body",
        "user_agent": 'request.headers.get("User-Agent")',
        "user": 'context.state["user"]',
        "session": "context.session",
    },
    "Response": {
        "status_code": "response.code(404), or response.status",
        "set_status": "response.code(404), or response.status",
        "set_header": "response.header(name, value)",
        "content_type": "response.body(data, content_type)",
        "mimetype": "response.body(data, content_type)",
        "data": "response.body(data, content_type)",
        "write": "response.stream(iterable)",
        "set_cookie": "response.cookie(name, value)",
        "cookies": "response.cookie(name, value)",
        "download": "response.file(path, filename=name)",
        "render": "response.html(template, name=value)",
    },
    "TestClient": {
        "params": "query={...}",
        "query_string": "query={...}",
        "data": "form={...} for fields, body=b'...' for bytes",
        "content": "body=b'...'",
        "content_type": 'headers={"Content-Type": ...}',
        "cookies": 'client.cookies["name"] = "value"',
        "headers": 'headers={"X-Name": "value"} in each request',
        "auth": 'headers={"Authorization": ...} in each request',
        "environ": "environ={...} in each request",
        "base_url": "the full URL in place of the path",
        "allow_redirects": "follow_redirects=True",
        "follow_redirects": "get(..., follow_redirects=True)",
    },
    "TestResponse": {
        "status_code": "response.status",
        "content": "response.body",
        "data": "response.body",
        "get_json": "response.json",
        "cookies": "client.cookies",
        "ok": "response.status == 200",
        "raise_for_status": "response.status == 200",
    },
}


def _advice(thing: object, name: str, known: Iterable[str]) -> str:
    """Return advice on what to write instead of an attribute that `thing` does not have."""
    for base in type(thing).__mro__:
        if name in (names := _KNOWN_ELSEWHERE.get(base.__name__, {})):
            return f"write {names[name]}"
    return f"it has {', '.join(other for other in known if other[0] != '_')}"


def _is_ours(kind: type) -> bool:
    """Tell whether a class or one of its base classes is defined in this file."""
    return any(base.__module__ == __name__ for base in kind.__mro__)


_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'[^;]*")


def _explain_missing(error: AttributeError, *things: object) -> None:
    """If `error` is about a missing attribute of one of `things`, add advice to its message."""
    found = _NO_ATTRIBUTE.fullmatch(str(error))
    # Python 3.9 does not store the object in the exception. If an assignment fails, only Python
    # 3.13 and newer store it.
    obj = getattr(error, "obj", None)
    for thing in things if obj is None else (obj,):
        if found and type(thing).__name__ == found[1] and _is_ours(type(thing)):
            advice = _advice(thing, found[2], dir(thing))
            error.args = (f"{error}; {advice}",)
            if advice.startswith("write "):
                # Otherwise, Python would look for a similar name in `obj` and add "Did you mean",
                # which could contradict our advice.
                error.obj = None
            return


class _Explained:
    """If an attribute is missing, raise an AttributeError that says what to write instead.

    If a class has `__getattr__`, reading any attribute of its instances takes longer. `WebApp` and
    the objects of a request therefore do not inherit from this class: `_NoSuchName` explains the
    missing attributes of an application, and the log explains those of the other objects.
    """

    if not TYPE_CHECKING:  # otherwise type checkers would believe that every name exists

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self)
            if hasattr(kind, name):  # a property that has raised AttributeError
                return object.__getattribute__(self, name)
            error = AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            _explain_missing(error, self)
            raise error


# ---- header values -----------------------------------------------------------
#
# How is the text of a header field read and written? The grammar comes from RFC 9110.
#
#     _parse_options('text/html; Charset="utf-8"')   ("text/html", {"charset": "utf-8"})
#     _parse_accept("text/*;q=0.5, text/html")       ("text/*", {}, 0.5), ("text/html", {}, 1.0)
#     _http_date(0)                                  "Thu, 01 Jan 1970 00:00:00 GMT"
#
# Reading never raises an exception: a value that cannot be read is treated as absent. Writing
# raises a ValueError for a value that would corrupt the response. Read RFC 9110 sections 5.6 and
# 12.5.1 alongside this section. On a first reading, you can skip cookies.

_TCHAR = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]"  # a character of a token: RFC 9110 section 5.6.2
_TOKEN = re.compile(f"{_TCHAR}+")
# PEP 3333 allows latin-1 without control characters, so tabs are not allowed.
_NOT_IN_VALUE = re.compile(r"[^\x20-\x7e\x80-\xff]")
_HOST = r"[A-Za-z0-9\-._~!$&'()*+,;=]*"
# The value of a Host header (RFC 3986 section 3.2).
_is_authority = re.compile(
    rf"(?:(?=[^:]){_HOST}(?:%[0-9A-Fa-f]{{2}}{_HOST})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{0,5}})?"
).fullmatch
# An address in X-Forwarded-For. It may be followed by a port, and it may be a made-up name. If it
# has several colons and no brackets, it is an IPv6 address.
_ADDRESS = re.compile(
    r"(?:\[([0-9A-Za-z._:%-]+)\]|([0-9A-Za-z._%-]+))(?::[0-9]{0,5})?|([0-9A-Za-z._:%-]+)"
)
# Headers that only the server may set, because they describe its connection (RFC 9110 section
# 7.6.1, PEP 3333), and the Status header of CGI.
_NOT_OURS = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection "
    "te trailer trailers transfer-encoding upgrade status".split()
)


@lru_cache(maxsize=256)
def _check_header_name(name: str) -> str:
    """Return `name` as a plain str; raise ValueError if a response must not have such a header."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"the name of a header must be a token (RFC 9110), not {name!r}")
    if name.lower() in _NOT_OURS:
        raise ValueError(f"the header {name} is set by the server")
    return str.__str__(name)  # wsgiref.validate refuses a Markup


_DATE = "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT"
_DATE_FORM = (
    re.compile(_DATE),
    "a date such as Thu, 01 Jan 2026 00:00:00 GMT (email.utils.formatdate(seconds, usegmt=True))",
)
# Clients ignore these headers if the value does not have the required form (RFC 9110 sections
# 5.6.7, 8.3.1 and 8.8.3). Each header has a pattern for this form, and an example.
_FORMS = {
    "content-type": (re.compile(r"[^*/;]+/[^*/;]+(?:;.*)?"), "a media type such as text/csv"),
    "etag": (re.compile('(?:W/)?"[^"]*"'), """a quoted string, such as '"1"'"""),
    "date": _DATE_FORM,
    "last-modified": _DATE_FORM,
    "expires": (re.compile(f"{_DATE}|0|-1"), _DATE_FORM[1]),  # RFC 9111 section 5.3
    "content-length": (re.compile("[0-9]+"), "a number of bytes"),
}


def _check_header(name: str, value: str, *, ours: bool = True) -> _TextPair:
    """Return a header field's name and trimmed value; raise ValueError if either is not allowed.

    If a mounted application has set the field (`ours` is false), the form of the value is checked
    only if the field is Content-Length.
    """
    name = _check_header_name(name)
    if not isinstance(value, str):
        _check_text(f"the value of header {name}", value)
    if _NOT_IN_VALUE.search(value):
        raise ValueError(
            f"the value of header {name} must be latin-1 without control characters, not {value!r}"
        )
    value = str.strip(value, " ")
    key = name.lower()
    if key in _FORMS and (ours or key == "content-length"):
        form, example = _FORMS[key]
        if not form.fullmatch(value):
            raise ValueError(f"the header {name} must be {example}, not {value!r}")
    return name, value


# The contents of a quoted string (RFC 9110 section 5.6.4). If the string is never closed, it
# extends to the end of the text. No two branches of these regular expressions begin with the same
# character, so a search takes linear time.
_QUOTED = r'[^"\\]*(?:\\.[^"\\]*)*'
_ESCAPE, _BROWSER_ESCAPE = re.compile(r"\\(.)", re.DOTALL), re.compile(r'\\(["\\])')
_ELEMENT = re.compile(rf'(?:[^,"]|"{_QUOTED}"?)+', re.DOTALL)  # an element between commas
# A parameter: its name, then a quoted string or plain text. The last branch skips strings without
# a name, and weights that are quoted.
_PARAMETER = re.compile(
    rf';\s*(?![qQ]\s*=\s*")([^\s;="]+)\s*=\s*(?:"({_QUOTED})"?|([^;"]*))|"{_QUOTED}"?', re.DOTALL
)
_QVALUE = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")  # RFC 9110 section 12.4.2
_MEDIA_RANGE = re.compile(f"{_TCHAR}+/{_TCHAR}+")
_Accepted = tuple[str, dict[str, str], float]  # a media range, its parameters and its weight


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


def _parse_options(value: str, *, strict: bool = True) -> tuple[str, dict[str, str]]:
    r"""Split a header value into its main part and its parameters.

    If two parameters have the same name, the first one is used.

    In a quoted string, a backslash escapes the next character. If `strict` is false, a backslash
    escapes only a quote or another backslash, because browsers send `C:\dir\file` unescaped.
    """
    escape = _ESCAPE if strict else _BROWSER_ESCAPE  # split() leaves out the backslashes
    options = {
        name.lower(): "".join(escape.split(quoted)) or plain.strip()
        for name, quoted, plain in reversed(_PARAMETER.findall(value))
        if name
    }
    return _media_type(value), options


def _parse_accept(value: str) -> Iterator[_Accepted]:
    """Yield each media range in an Accept header, with its parameters and weight."""
    for media_range, parameters in map(_parse_options, _ELEMENT.findall(value)):
        if _MEDIA_RANGE.fullmatch(media_range):
            weight = parameters.pop("q", "")
            parameters.pop("charset", "")  # every response is in UTF-8
            yield media_range, parameters, float(weight) if _QVALUE.fullmatch(weight) else 1.0


@lru_cache(maxsize=32)
def _names_json(accept: str) -> bool:
    """Tell whether an Accept header names JSON with a weight above 0; wildcards do not count."""
    return any(
        weight > 0 and media_range in ("application/json", "text/javascript")
        for media_range, _, weight in _parse_accept(accept)
    )


def _quality(offer: str, ranges: Sequence[_Accepted]) -> float:
    """Return the weight of the most specific range that matches the media type `offer`.

    The weight is 0 if no range matches.
    """
    name, parameters = _parse_options(offer)
    matches = {name: 2, name.partition("/")[0] + "/*": 1, "*/*": 0}
    best = (-1, 0, 0.0)
    for media_range, wanted, weight in ranges:
        if media_range in matches and wanted.items() <= parameters.items():
            # Among ranges that are equally specific, the one with the highest weight wins.
            best = max(best, (matches[media_range], len(wanted), weight))
    return best[2]


@lru_cache(maxsize=64)
def _http_date(seconds: float) -> str:
    """Format a timestamp as an IMF-fixdate (RFC 9110 section 5.6.7).

    A timestamp before 1970 is formatted as the beginning of 1970, and one after 2999 as the
    beginning of 3000, because some systems can format only the dates in between.
    """
    return format_date_time(min(max(seconds, 0), 32_503_680_000))


def _parse_http_date(value: str) -> float | None:
    """Return the timestamp of a date in one of the three forms of RFC 9110 section 5.6.7.

    Return None if the date cannot be read.
    """
    from email.utils import mktime_tz, parsedate_tz

    with suppress(Exception):  # both functions raise many kinds of exceptions for malformed dates
        parsed: Any = parsedate_tz(value)
        return float(mktime_tz(parsed))
    return None


_NOT_IN_COOKIE = re.compile(r"[\x00-\x1f\x7f;]")
_COOKIE_OCTETS = re.compile(r"[!#-+\--:<-\[\]-~]*")  # RFC 6265 section 4.1.1
_COOKIE_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_SECURE_NAMES = ("__secure-", "__host-", "__http-")  # browsers keep these only if Secure is set
_DOMAIN = re.compile(r"(?:\.?[0-9A-Za-z_-]+(?:\.[0-9A-Za-z_-]+)*)?")


def _needs_https(name: str, samesite: str | None, partitioned: bool) -> bool:
    """Tell whether browsers would reject this cookie if it did not have the Secure attribute."""
    return samesite == "None" or partitioned or name.lower().startswith(_SECURE_NAMES)


def _quote_cookie(value: str) -> str:
    """Return a cookie's value in the form in which Werkzeug sends it.

    The value is quoted and escaped unless it consists only of cookie-octets. Lone surrogates become
    `?`.
    """
    octets = value.encode("utf-8", "replace").decode("latin-1")
    if _COOKIE_OCTETS.fullmatch(octets):
        return octets
    from http.cookies import SimpleCookie

    return SimpleCookie().value_encode(octets)[1]


def _unquote_cookie(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return _COOKIE_ESCAPE.sub(
        lambda found: chr(int(found[1], 8)) if found[1] else found[2], value[1:-1]
    )


def _time_stamp(moment: float | datetime) -> float:
    """Convert `moment` to a timestamp; a datetime without a time zone is treated as local time."""
    if isinstance(moment, (int, float)):
        if 0 < moment < 946_684_800:  # the year 2000; browsers would delete the cookie
            raise ValueError(
                f"expires={moment} is a timestamp before the year 2000; if you mean seconds "
                f"from now, write max_age={moment}"
            )
        return moment
    try:
        return moment.timestamp()
    except (OSError, OverflowError, ValueError):
        # The system cannot compute local times in the very distant past or future (or, on Windows,
        # before 1970). For such dates, a few hours do not matter.
        return moment.replace(tzinfo=timezone.utc).timestamp()


# ---- statuses and exceptions -------------------------------------------------
#
# What can go wrong, and what does HTTP call it? An exception carries the status of the response,
# but not its body.
#
#     raise HttpException(503, "the printer is busy", headers={"Retry-After": "10"})
#     HttpException(499).phrase                        "Client Error"
#
# http.HTTPStatus has the phrases from RFC 9110 section 15 and from the IANA registry, except that
# four of them are outdated in old versions of Python. Its phrase for 418 is a joke, and RFC 9110
# reserves the code.

# The phrases for codes that are not registered.
_CLASSES = {2: "Successful", 3: "Redirection", 4: "Client Error", 5: "Server Error"}
_PHRASES = {
    **{status: _CLASSES[status // 100] for status in range(200, 600)},
    **{int(status): status.phrase for status in HTTPStatus if status >= 200 and status != 418},
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}
# Responses without a body: RFC 9110 sections 15.3.5, 15.3.6 and 15.4.5.
_BODILESS = (204, 205, 304)
# Each status line is also the default text body for its status.
_STATUS_LINES = {status: f"{status} {phrase}" for status, phrase in _PHRASES.items()}


def _check_status(status: object) -> int:
    if isinstance(status, int) and status in _PHRASES:
        return int(status)  # it may be an HTTPStatus
    raise ValueError(f"a status must be an int from 200 to 599, not {status!r}")


def _check_public(text: Any) -> str:
    """Return the text for visitors as a plain str."""
    _check_text("public", text)
    if len(text.splitlines()) != 1:
        raise ValueError(f"public must be one line of text for visitors, not {_value(text)}")
    return str.__str__(text)


class _Copyable(Exception):
    """Allow an exception to be copied and pickled, whatever arguments its `__init__` takes.

    By default, a copy is made by calling `__init__` again, but only with the positional arguments.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        state = {
            name: copy(value) if name == "headers" else value for name, value in vars(self).items()
        }
        return copyreg.__newobj__, (type(self), *self.args), state  # type: ignore[attr-defined]


class _OwnHeaders:
    """Hold the header fields of an exception class, and give each exception its own copy."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    def __get__(self, error: Any, owner: object) -> Any:
        if error is None:
            return MappingProxyType(self._headers)
        # This class has no __set__, so from now on Python finds the copy in the exception.
        error.headers = self._headers.copy()
        return error.headers


class HttpException(_Copyable):
    """Answer the request with a status: `raise HttpException(503, "the printer is busy")`.

    Arguments, which are also attributes:

    - `status_code`: an int from 200 to 599.
    - `message`: text for the log and for error hooks. Clients never see it.
    - `headers`: a mapping of header fields, which are set before the error hooks run.
    - `public`: one line of text for the visitor. If no error hook builds a body, this text replaces
      the phrase in the default JSON body, or the entire default text body.

    Raise ValueError if the status or a header is not valid, or if `public` is not a single line.
    """

    # If the __init__ of a subclass does not call super().__init__(), these class attributes are
    # used.
    status_code: int = 500
    """The status of the response, from 200 to 599."""
    message: str = ""
    """Text for the log and for error hooks; clients never see it."""
    headers: Mapping[str, str] = cast(Any, _OwnHeaders({}))
    """Header fields for the response, by name. Each exception gets its own copy."""
    public: str | None = None
    """One line of text for the visitor, which replaces the phrase."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(cls.headers, Mapping):
            cls.headers = cast(Any, _OwnHeaders(cls.headers))

    def __init__(
        self,
        status_code: int,
        message: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        public: str | None = None,
    ) -> None:
        self.status_code = _check_status(status_code)
        self.message = message
        if headers:
            if not hasattr(headers, "items"):
                raise TypeError(f"headers must map names to values, not {_value(headers)}")
            self.headers = dict(_check_header(name, value) for name, value in headers.items())
        if public is not None:
            self.public = _check_public(public)

    def __str__(self) -> str:
        if "status_code" not in vars(self) and type(self).status_code == HttpException.status_code:
            return f"{_name(type(self).__init__)}() must call super().__init__(status_code)"
        return str(self.message or self.public or _STATUS_LINES[self.status_code])

    @property
    def phrase(self) -> str:
        """The reason phrase of the status (RFC 9110 section 15).

        If no phrase is registered, this is the name of the status class, such as "Client Error".
        """
        return _PHRASES[self.status_code]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status_code}, {self.message or self.public or ''!r})"


class _Overloaded(HttpException):
    """Answer the request with 503 because the server is overloaded.

    Nothing has failed, so no traceback is logged.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, headers={"Retry-After": "10"})


class NotFoundException(HttpException):
    """Answer the request with 404.

    Raise this exception if something does not exist. The dispatcher raises it for unknown paths.
    """

    status_code = 404

    def __init__(self, message: str = "", *, public: str | None = None) -> None:
        self.message = message
        if public is not None:
            self.public = _check_public(public)


class MethodNotAllowedException(HttpException):
    """Answer the request with 405 and an Allow header (RFC 9110 section 15.5.6).

    The path has routes, but only for other methods. The argument `allow` is an iterable of methods
    or a str such as "GET, HEAD". The attribute `allow` is a sorted tuple.
    """

    status_code = 405

    def __init__(self, allow: Iterable[str]) -> None:
        methods = allow.replace(",", " ").split() if isinstance(allow, str) else allow
        self.allow = tuple(sorted(set(methods)))
        self.headers = dict([_check_header("Allow", ", ".join(self.allow))])
        self.message = f"allowed methods: {self.headers['Allow']}"


class CodeException(_Copyable):
    """Carry an error `code` and a `message`, for example from a database or a validator.

    The code does not determine the HTTP status. If nothing catches the exception, the request is
    answered with 500.
    """

    def __init__(self, code: object, message: str = "") -> None:
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else str(self.code)


# ---- fields and uploads ------------------------------------------------------
#
# How do the bytes of a query string or form become named values?
#
#     _parse_urlencoded("a=1&a=%C3%BC", 1000, 400)  Fields([("a", "1"), ("a", "ü")])
#     _parse_multipart(read, b"x", ...)             ([("title", "Cats")], [("photo", UploadedFile)])
#
# `Fields` is also used for headers and cookies. The parsers take linear time. They raise only
# HttpException, with a 4xx status or, if the disk is full, with 503. Read the URL standard (section
# 5), RFC 7578 and RFC 2046 (section 5.1) alongside this section. On a first reading, you can skip
# charsets.


class _BadField(HttpException, ValueError):
    """Report that `field` cannot be converted.

    The request is answered with 400 unless the application catches the ValueError.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(400, message)
        self.field = field


class _MissingField(_BadField, KeyError):
    """Report that a field is missing.

    The request is answered with 400 unless the application catches the KeyError or ValueError.
    """


_NOT_GIVEN: Any = ...  # a default where None is a valid value; help() shows it as `...`
_BYTES = bytes, bytearray, memoryview
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, Counter, *_BYTES)  # these split text


# Converting a number with a large exponent would use up all memory.
_EXPONENT = re.compile(r"[eE][+-]?[0_]*([\d_]+)\s*\Z")


def _is_finite(value: object) -> bool:
    """Return False for infinities and NaN; unlike math.isfinite(), accept ints of any size."""
    if isinstance(value, (float, complex)):
        return cmath.isfinite(value)
    is_finite = getattr(value, "is_finite", None)  # of a Decimal
    return not callable(is_finite) or bool(is_finite())


class Fields(Mapping[str, _T]):
    """Hold the named values that a client sent in a query, a form, headers or cookies.

    `Fields` is a read-only mapping. A name may have several values: `fields[name]` and `get` return
    the first one, and `getall` returns all of them. Iteration yields each name once, in order of
    appearance.

    If a name is missing, `fields[name]` raises an exception that is both a KeyError and an
    HttpException with status 400. Its message begins with "Missing", the `noun` and the name, and
    ends with the `reason` if there is one.
    """

    __slots__ = ("_noun", "_reason", "_values")

    def __init__(
        self,
        pairs: Iterable[tuple[str, _T]] = (),
        *,
        noun: str = "field",
        reason: str = "",
    ) -> None:
        self._noun = noun
        self._reason = reason
        self._values: dict[str, list[_T]] = {}  # empty in a subclass that overrides `_find`
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def _find(self, name: str) -> Sequence[_T]:
        """Return all values of `name`; every other lookup uses this method."""
        return self._values.get(name, ())

    def __getitem__(self, name: str) -> _T:
        values = self._find(name)
        if not values:
            reason = f": {self._reason}" if self._reason else ""
            raise _MissingField(name, f"Missing {self._noun} {name!r}{reason}")
        return values[0]

    @overload
    def get(self, name: str) -> _T | None: ...

    @overload
    def get(self, name: str, default: _T | _Default) -> _T | _Default: ...

    def get(self, name: str, default: Any = None) -> Any:
        """Return the first value of `name`, or `default`.

        Raise TypeError if `default` is a function, because only `parse` converts values.
        """
        if callable(default):
            raise TypeError(
                f"get({_value(name)}, {_value(default)}) does not convert the value: write "
                f"parse({_value(name)}, {_value(default)})"
            )
        values = self._find(name)
        return values[0] if values else default

    def getall(self, name: str) -> list[_T]:
        """Return all values of `name` in order."""
        return list(self._find(name))

    def parse(
        self, name: str, convert: Callable[[_T], _Converted], default: _Default = _NOT_GIVEN
    ) -> _Converted | _Default:
        """Return the first value of `name`, converted: `parse("page", int, default=1)`.

        - `convert` is a function that takes the value. To refuse it, the function may raise a
          ValueError, an ArithmeticError (as Decimal does) or a LookupError (as the `__getitem__` of
          an Enum or dict does).
        - `default` is returned if the field is missing. It is also returned if the field is empty
          and `convert` does not accept "".

        Raise HttpException 400 if the value cannot be converted, or if the field is missing and you
        did not give a default. This exception is also a ValueError (and, for a missing field, a
        KeyError), and its attribute `field` holds the name.

        The same exception is raised for a float, complex or Decimal that is not finite, because a
        check such as `value > limit` does not catch a NaN. It is also raised for a number with an
        exponent above 4,300.

        Raise TypeError if `convert` is `bool` or a container such as `list`.
        """
        if convert is bool:
            raise TypeError(
                "bool('false') is True: pass {'true': True, 'false': False}.__getitem__ instead"
            )
        if getattr(convert, "__origin__", convert) in _CONTAINERS:
            raise TypeError(
                f"parse({_value(name)}, {_value(convert)}) would split a single value: "
                f"getall({_value(name)}) returns all values as a list"
            )
        if not callable(convert):
            raise TypeError(
                f"parse({_value(name)}, {_value(convert)}): the second argument must be a "
                "conversion function, such as int"
            )
        if default is not _NOT_GIVEN and name not in self:
            return default
        value = self[name]
        try:
            exponent = _EXPONENT.search(str(value))
            is_large = exponent and exponent[1].replace("_", "").zfill(5) > "04300"
            if is_large and isinstance(convert, type) and issubclass(convert, Number):
                raise ValueError("its exponent is too large")
            converted = convert(value)
            if not _is_finite(converted):
                raise ValueError("it is not finite")
            return converted
        except HttpException:
            raise
        except (ValueError, ArithmeticError, LookupError) as error:
            if default is not _NOT_GIVEN and value == "":
                return default
            words = f"{_name(convert)} does not accept {value!r:.80}: {str(error)[:200]}".rstrip(
                ": "
            )
            raise _BadField(name, f"{self._noun.capitalize()} {name!r}: {words}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, value: object) -> None:
        raise TypeError(
            f"a {self._noun} is read-only: to send a header, write response.header(name, value); "
            "to send a cookie, write response.cookie(name, value)"
        )

    def __repr__(self) -> str:
        items = [(name, value) for name in self for value in self.getall(name)]
        return f"{type(self).__name__}({items!r})"


class Headers(Fields[str]):
    """Hold the header fields of a response by their case-insensitive names.

    `getall(name)` returns all values of a repeated field. If a field is missing, `headers[name]`
    raises an ordinary KeyError.
    """

    __slots__ = ("_spelling",)  # maps a name in lowercase to its first spelling

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._spelling: dict[str, str] = {}
        super().__init__(
            (self._spelling.setdefault(name.lower(), name), value) for name, value in pairs
        )
        self._noun = "header"

    def _find(self, name: str) -> Sequence[str]:
        return self._values.get(self._spelling.get(name.lower(), ""), ())

    def __getitem__(self, name: str) -> str:
        if values := self._find(name):
            return values[0]
        raise KeyError(name)


class _InputObject(dict[str, Any]):
    """Hold a JSON object from a client; looking up a missing member raises HttpException 400."""

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        raise _MissingField(name, f"Missing input {name!r}")


_NO_FILES: Fields[Any] = Fields(reason="a form sends files only with enctype='multipart/form-data'")


def _wsgi_text(text: str, errors: str = "strict") -> str:
    """Decode UTF-8 that WSGI passes as one character per byte, or raise UnicodeError."""
    return text if text.isascii() else text.encode("latin-1", errors).decode("utf-8", errors)


_PERCENT_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CHARACTERS = {f"%{a}{b}": chr(int(a + b, 16)) for a in string.hexdigits for b in string.hexdigits}


def _unescape_percent(text: str) -> str:
    """Decode percent escapes to one character per byte (latin-1); keep malformed escapes."""
    # urllib.parse.unquote_to_bytes takes too much memory and time for a form full of percent signs.
    return _PERCENT_ESCAPE.sub(lambda escape: _CHARACTERS[escape[0]], text) if "%" in text else text


_URLENCODED_PIECE = re.compile("[^&]+")


def _parse_urlencoded(text: str, max_fields: int, status: int) -> Fields[str]:
    """Parse application/x-www-form-urlencoded (URL standard, section 5.1).

    `text` has one character per byte (latin-1). Raise HttpException 400 for text that is not valid
    UTF-8, and HttpException `status` for more than `max_fields` fields.
    """
    text = text.replace("+", " ")
    if text.count("&") < max_fields:
        pieces = text.split("&")
    else:  # too many pieces, unless some are empty; a list of all of them would be large
        found = itertools.islice(_URLENCODED_PIECE.finditer(text), max_fields + 1)
        pieces = [piece[0] for piece in found]
        if len(pieces) > max_fields:
            raise HttpException(status, f"More than {max_fields:,} fields (max_fields)")
    fields: Fields[str] = Fields()
    values = fields._values
    try:
        for piece in filter(None, pieces):
            name, _, value = piece.partition("=")
            if "%" in piece or not piece.isascii():
                name = _wsgi_text(_unescape_percent(name))
                value = _wsgi_text(_unescape_percent(value))
            values.setdefault(name, []).append(value)
    except UnicodeError:
        raise HttpException(400, "Text in the request is not valid UTF-8") from None
    return fields


# Charsets that a client may name. Other names could import modules, or choose codecs that take
# quadratic time.
_CHARSETS = frozenset(
    "utf-8 utf8 us-ascii ascii latin-1 latin1 cp1252 utf-16 utf-16le utf-16be utf-32 "
    "iso-8859-1 iso-8859-2 iso-8859-5 iso-8859-7 iso-8859-15 "
    "windows-1250 windows-1251 windows-1252 koi8-r "
    "big5 euc-jp euc-kr gb2312 gbk gb18030 iso-2022-jp shift_jis".split()
)


def _decode(data: bytes, charset: str = "utf-8") -> str:
    """Decode a client's text (as UTF-8 if `charset` is unknown), or raise HttpException 400."""
    try:
        return data.decode(charset if charset.lower() in _CHARSETS else "utf-8")
    except UnicodeDecodeError:
        raise HttpException(400, "Text in the request is not valid in its charset") from None


class UploadedFile(NamedTuple):
    """Represent an uploaded file (RFC 7578). The client may lie about the file's name and type.

    - `filename`: the file's name without directories and control characters. It may be `..`, or
      `""` if the client sent no name.
    - `content_type`: the media type without parameters, in lowercase, or `""` if the client sent
      none.
    - `file`: an open binary file, seekable and positioned at its start. It is a BytesIO, or a
      temporary file if it is larger than about 1 MiB.
    - `size`: the number of bytes.

    If a file input is left empty, browsers send an upload with neither a name nor content. Such an
    upload is false, so you can test for it with `if not upload`.
    """

    filename: str
    """The name without directories, as claimed by the client, or `""` if the client sent none."""
    content_type: str
    """The media type without parameters, as claimed by the client, or `""` if it sent none."""
    file: BinaryIO
    """The open file, binary and seekable, positioned at its start."""
    size: int
    """The number of bytes."""

    def __bool__(self) -> bool:
        return bool(self.filename or self.size)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole file to `path`, replacing an existing file.

        The position in `file` does not change. Raise OSError if the file cannot be written.
        """
        import shutil

        position = self.file.tell()
        with open(path, "wb") as target:
            self.file.seek(0)
            shutil.copyfileobj(self.file, target, _READ_SIZE)
        self.file.seek(position)


_SPOOL_SIZE = 2**20  # a larger file goes to disk
_MAX_PART_HEADER = 8 * 2**10  # browsers send about 200 bytes
_MEAN_PART_HEADER = 2**10  # limits the mean length, because headers are more work than content
_MAX_LOOKALIKES = 2**16  # each one costs time, and no honest client repeats its boundary that often
_READ_SIZE = 2**20
# How many bytes are read or sent at a time. This is also the number of bytes that must be
# transferred within body_timeout or write_timeout.
_PIECE = 2**16


def _has_gil() -> Any:
    return vars(sys).get("_is_gil_enabled", lambda: True)()  # getattr() is slow for a missing name


_LONGEST_BREAK = 0.002  # seconds


class _Turns:
    """Make threads take turns at processing large parts of a request.

    This work holds the global interpreter lock (GIL), so if several threads did it at once, all
    other threads would have to wait for each of them. Between one turn and the next, there is a
    short break, during which other threads can run.

    During its turn, a thread must not wait for a client or a disk, and must not call the
    application.
    """

    def __init__(self) -> None:
        # It is reentrant because a finalizer may parse while its own thread is parsing.
        self.lock = threading.RLock()
        self._break = 0.0  # the length of the break after the last turn, in seconds

    @contextmanager
    def take(self) -> Iterator[None]:
        if not _has_gil():
            yield
            return
        asked = monotonic()
        with self.lock:
            if monotonic() - asked > _LONGEST_BREAK:  # other threads are probably waiting too
                time.sleep(self._break)
            began = monotonic()
            try:
                yield
            finally:
                self._break = min(_LONGEST_BREAK, (monotonic() - began) / 10)


_parsing = _Turns()


def _parse_in_turn(parse: Callable[..., _T], data: str | bytes, *limits: int) -> _T:
    if len(data) <= _PIECE:
        return parse(data, *limits)
    with _parsing.take():
        return parse(data, *limits)


def _spool(
    pieces: Iterator[bytes],
    temporary_files: ExitStack,
    observer: _Observer,
    *,
    in_memory: int = _SPOOL_SIZE,
) -> tuple[BinaryIO, int]:
    """Write all pieces to a file; return the file, positioned at its start, and its size.

    A file of more than `in_memory` bytes becomes a temporary file. The observer may prevent this
    file from being created, or a piece from being written to it. The observer is also told how many
    bytes are no longer in memory.
    """
    # Before Python 3.11, zipfile and io cannot read a tempfile.SpooledTemporaryFile.
    file: Any = BytesIO(next(pieces))  # this does not copy the piece
    file.seek(0, io.SEEK_END)
    spooled = 0
    for piece in pieces:
        block = piece
        if isinstance(file, BytesIO):
            if file.tell() + len(piece) <= in_memory:
                file.write(piece)
                continue
            import tempfile

            observer.count_spooled(0, 1)
            temporary_files.callback(lambda: observer.count_spooled(-spooled, -1))  # noqa: B023
            block = file.getvalue() + piece
            file = temporary_files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        spooled += len(block)
        observer.count_spooled(len(block))
        file.write(block)
        observer.give_back_body(len(block))
    size = file.tell()
    file.seek(0)  # this also flushes the buffer
    return file, size


def _join(pieces: Iterable[bytes], limit: int, too_long: str) -> bytes:
    joined = BytesIO()  # a list of tiny pieces would take much more memory than a buffer
    for piece in pieces:
        joined.write(piece)
        if joined.tell() > limit:
            raise HttpException(413, too_long)
    return joined.getvalue()


# RFC 2046 (section 5.1.1) allows only some of these characters, but clients also send the others.
_BOUNDARY = re.compile(rb"[ -~]{1,70}")
_Mark = tuple[bytes, re.Pattern[bytes]]  # how a mark begins, and how it continues
_BLANK_LINE = b"\r\n\r\n", re.compile(b"")
# In the last delimiter, two hyphens follow the boundary. In all others, a line ending follows it,
# perhaps after some padding.
_DELIMITER_END = re.compile(rb"--|[ \t]{0,70}\r\n")
_LONGEST_END = 72  # the most bytes that the pattern can match
_CR_LF = b"\r\n"
# Only CR LF ends a line, because attackers can exploit parsers that disagree about line endings.
_PART_FIELD = re.compile(rf"({_TCHAR}+):([^\r\n]*)")
_FOLD = re.compile(r"\r\n[ \t]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A part without a file name is a field if it has one of these types, or no type ("").
_IS_OF_FIELD = re.compile(
    r"|text/.*|application/(?:json|.*\+json|xml|x-www-form-urlencoded)", re.DOTALL
)


class _PartReader:
    """Split a body into its preamble and the header and content of each part.

    Each of these sections is followed by a mark, which is a blank line or a delimiter. The next
    section begins after the line ending that completes the mark. If that section is empty, the same
    line ending may also be the beginning of the next mark.
    """

    def __init__(self, read: _ReadFunction, boundary: bytes, first: bytes) -> None:
        if not _BOUNDARY.fullmatch(boundary):
            raise HttpException(400, "multipart/form-data without a valid boundary")
        self.read = read
        self.delimiter: _Mark = b"\r\n--" + boundary, _DELIMITER_END
        # The bytes that were read last. There may be no line ending before the first delimiter, so
        # one is inserted before the body.
        self.buffer = _CR_LF + first
        self.position = 0  # the index of the line ending before the next header or content
        self.lookalikes = _MAX_LOOKALIKES  # how many more marks may turn out to be content
        self.at_end = False  # whether the last delimiter has been passed

    def last_delimiter(self) -> int:
        """Return the index of the last complete delimiter in the buffer, or -1."""
        begin, rest = self.delimiter
        start = len(self.buffer)
        while (start := self.buffer.rfind(begin, 0, start)) >= 0:
            if rest.match(self.buffer, start + len(begin)):
                break
        return start

    def is_whole(self, last: int) -> bool:
        """Tell whether the buffer is long and the next part ends at or before `last`.

        Such a part can be parsed without calling `read`.
        """
        return len(self.buffer) > _PIECE and (
            0 <= self.buffer.find(_BLANK_LINE[0], self.position) < last
        )

    def header(self) -> Iterator[bytes]:
        """Yield the header of a part in pieces."""
        yield from self.before(_BLANK_LINE)

    def content(self) -> Iterator[bytes]:
        """Yield the preamble, or the content of a part, in pieces; skip the delimiter."""
        end = yield from self.before(self.delimiter)
        self.at_end = end == b"--"

    def before(self, mark: _Mark) -> Generator[bytes, None, bytes]:
        """Yield everything before the next `mark`, in pieces; skip the mark, and return its end.

        Raise HttpException 400 if the body ends without a mark.
        """
        while not (found := self.find(*mark)):
            start = self.position + len(_CR_LF)
            # The end of the buffer may be the beginning of a mark.
            end = max(start, len(self.buffer) - len(mark[0]) - _LONGEST_END)
            yield self.buffer[start:end]
            more = self.read(_PIECE)
            if not more:
                raise HttpException(400, "multipart/form-data without its last delimiter")
            self.position = 0
            self.buffer = self.buffer[end - len(_CR_LF) :] + more
        start = self.position + len(_CR_LF)
        yield self.buffer[start : found.start() - len(mark[0])]
        self.position = found.end() - len(_CR_LF)
        return found[0]

    def find(self, begin: bytes, rest: re.Pattern[bytes]) -> re.Match[bytes] | None:
        end = self.position
        while (start := self.buffer.find(begin, end)) >= 0:
            end = start + len(begin)
            if found := rest.match(self.buffer, end):
                return found
            self.lookalikes -= 1
            if self.lookalikes < 0:
                raise HttpException(400, "The boundary of the form occurs too often in its parts")
        return None


def _describe_part(header: bytes) -> tuple[str, str | None, str, str]:
    """Return the name of a part, its file name, its media type and its charset.

    The file name is None if the part is a field. The media type and the charset are "" if the
    client did not send them.
    """
    lines: dict[str, str] = {}
    for line in _FOLD.sub(" ", _decode(header)).split("\r\n"):
        field = _PART_FIELD.fullmatch(line)
        if not field:
            raise HttpException(400, "A part of the form has a malformed header")
        lines.setdefault(field[1].lower(), field[2])
    _, disposition = _parse_options(lines.get("content-disposition", ""), strict=False)
    content_type, parameters = _parse_options(lines.get("content-type", ""))
    name, filename = _form_text(disposition, "name"), _form_text(disposition, "filename")
    if name is None:
        raise HttpException(400, "A part of the form has no name")
    if filename is None:
        # RFC 7578 section 4.2: the name of a file may be missing.
        is_field = "filename*" not in disposition and _IS_OF_FIELD.fullmatch(content_type)
        filename = None if is_field else ""
    else:  # old browsers send the whole path
        filename = _CONTROLS.sub("", filename).replace("\\", "/").rpartition("/")[2]
    return name, filename, content_type, parameters.get("charset", "")


def _form_text(disposition: dict[str, str], parameter: str) -> str | None:
    """Return a parameter of Content-Disposition, or None if it is missing or cannot be read."""
    # RFC 7578 forbids `filename*=UTF-8''%C3%A4` (RFC 8187), but some clients send it. Other
    # charsets are ignored, because a client could use them to hide a name.
    pieces = disposition.get(parameter + "*", "").split("'", 2)  # charset, language, octets
    if len(pieces) == 3 and pieces[0].lower() in ("utf-8", "iso-8859-1"):
        with suppress(UnicodeError):
            return _unescape_percent(pieces[2]).encode("latin-1").decode(pieces[0])
    text = disposition.get(parameter)  # browsers escape only quotes and line endings
    return (
        None if text is None else text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
    )


def _parse_multipart(
    read: _ReadFunction,
    boundary: bytes,
    *,
    max_fields: int,
    max_form_memory: int,
    observer: _Observer,
    closing: list[_Callback],
) -> tuple[_TextPairs, list[tuple[str, UploadedFile]]]:
    """Read a multipart/form-data body to its end (RFC 7578; RFC 2046, section 5.1).

    Return its fields and its files, and add to `closing` the functions that close the files.
    `read(n)` returns from 1 to `n` bytes, or b"" at the end. An empty body has no parts.

    Raise HttpException 413 for more than `max_fields` parts, for more than `max_form_memory` bytes
    in the names and values of fields, and for headers that are too long. Raise HttpException 400
    for a malformed body.
    """
    first = read(_SPOOL_SIZE + _PIECE)  # most forms are shorter than this
    if not first:  # a request without a body
        return [], []
    parts = _PartReader(read, boundary, first)
    fields: _TextPairs = []
    files: list[tuple[str, UploadedFile]] = []
    too_long = f"exceeds the {max_form_memory:,} bytes allowed for all fields (max_form_memory)"
    form_memory, header_bytes = max_form_memory, _MAX_PART_HEADER + max_fields * _MEAN_PART_HEADER
    try:
        with ExitStack() as temporary_files:
            preamble = sum(len(piece.strip()) for piece in parts.content())
            if preamble and parts.at_end:
                # The first delimiter is malformed. Without this check, a part would be lost.
                raise HttpException(400, "multipart/form-data without a first delimiter")
            while not parts.at_end:
                last = parts.last_delimiter()
                # If the part is incomplete, reading it may mean waiting for the client or a disk.
                with _parsing.take() if parts.is_whole(last) else nullcontext():
                    while True:
                        if len(fields) + len(files) == max_fields:
                            raise HttpException(
                                413, f"More than {max_fields:,} parts in the form (max_fields)"
                            )
                        header = _join(
                            parts.header(),
                            min(_MAX_PART_HEADER, header_bytes),
                            "The headers of one part, or of all parts, are too long",
                        )
                        header_bytes -= len(header)
                        name, filename, content_type, charset = _describe_part(header)
                        content = parts.content()
                        if filename is None:
                            form_memory -= len(name)
                            data = _join(content, form_memory, f"Field {name!r:.80} {too_long}")
                            form_memory -= len(data)
                            fields.append((name, _decode(data, charset)))
                        else:
                            spooled = _spool(content, temporary_files, observer)
                            files.append((name, UploadedFile(filename, content_type, *spooled)))
                        if parts.at_end or (
                            len(parts.buffer) > _PIECE and not parts.is_whole(last)
                        ):
                            break
            while read(_READ_SIZE):
                pass  # so that the epilogue counts towards the limits of `read`
            kept = temporary_files.pop_all()  # otherwise, `with` would close the files
        if files:
            closing += [kept.close, *(upload.file.close for _, upload in files)]
    except OSError as error:
        raise HttpException(503, f"an upload cannot be saved: {error}") from error
    return fields, files


# ---- JSON --------------------------------------------------------------------
#
# How is JSON read and written in strict accordance with RFC 8259?
#
#     _parse_json(b'{"a": [1]}', 1000)      {"a": [1]}
#     _parse_json(b"[NaN]", 1000)           HttpException 400; also for 1e999, and for 201 nested
#                                           brackets
#     _encode_json({"when": date.today()})  b'{"when": "2026-03-01"}'
#
# The limits in this section make sure that parsing a body takes little memory and time, and that
# every document within these limits can be encoded again. On a first reading, you can skip them.

# The number of values (numbers, strings, arrays and objects) is limited, because a value of two
# bytes may take 230 bytes of memory.
_MAX_JSON_VALUES = 2**17
_BYTES_PER_VALUE = 8  # a larger max_form_memory allows more values
# The depth of nested brackets is limited, because the encoder is recursive and fails at a depth
# below 1,000.
_MAX_JSON_DEPTH = 200
# The number of digits in an integer is limited, because int() takes quadratic time. CPython 3.11
# and newer have the same limit.
_MAX_JSON_DIGITS = 4300


def _parse_float(text: str) -> float:
    """Convert a number with a decimal point or exponent; raise ValueError if it is not finite."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is not a number, or is too large")
    return value


def _parse_int(digits: str) -> float:
    return int(digits) if len(digits.lstrip("-")) <= _MAX_JSON_DIGITS else _parse_float(digits)


_DECODER = json.JSONDecoder(
    parse_constant=_parse_float,
    parse_float=_parse_float,
    # With plain `int`, the decoder does not have to call a Python function. Old versions of Python
    # do not limit the number of digits.
    parse_int=int if hasattr(sys, "set_int_max_str_digits") else _parse_int,
)
# A string, which may contain commas and brackets, or an empty array or object.
_JSON_LEAF = re.compile(rf'"{_QUOTED}"?|[\[{{]\s*[\]}}]', re.DOTALL)


_MEMBERS: dict[type, Callable[[Any], Iterable[Any]]] = {dict: dict.values, list: iter}


def _is_too_deep(document: object) -> bool:
    level: list[Any] = [[document]]  # the arrays and objects at one depth
    for _ in range(_MAX_JSON_DEPTH + 1):
        level = [
            member
            for item in level
            for member in _MEMBERS[type(item)](item)
            if type(member) in _MEMBERS
        ]
    return bool(level)


def _parse_json(body: bytes, max_values: int) -> Any:
    """Return the document in `body`, which is UTF-8 with or without a BOM.

    Raise HttpException 400 if the body is not JSON, and 413 if it has too many values.
    """
    try:
        text = body.removeprefix(b"\xef\xbb\xbf").decode()
        brackets = text.count("[") + text.count("{")
        # The exact count, which ignores commas and brackets inside strings, takes longer.
        if len(text) > max_values and brackets + text.count(",") >= max_values:
            plain = _JSON_LEAF.sub("0", text)
            # Every value except the first follows one of these characters.
            if 1 + sum(map(plain.count, ",[{")) > max_values:
                raise HttpException(413, f"the JSON has more than {max_values:,} values")
        value = _DECODER.decode(text)
        if brackets > _MAX_JSON_DEPTH and _is_too_deep(value):
            raise ValueError(f"it is nested more than {_MAX_JSON_DEPTH} levels deep")
    except (ValueError, RecursionError) as error:
        raise HttpException(400, f"the body is not JSON: {error}") from error
    return _InputObject(value) if type(value) is dict else value


def _is_listed(value: object) -> bool:
    """Tell whether a value is treated as a list of its items in JSON, pages and queries.

    This applies to an iterable whose class does not define `__str__`. Lazy strings, models and IP
    networks define `__str__`, so they are not treated as lists.
    """
    return (
        isinstance(value, Iterable)
        and type(value).__str__ is object.__str__
        and not isinstance(value, (Mapping, *_BYTES))
    )


def _as_json_value(value: Any) -> Any:
    """Convert a value that the JSON encoder does not support to one that it does."""
    from dataclasses import fields, is_dataclass
    from decimal import Decimal
    from enum import Enum
    from uuid import UUID

    if isinstance(value, BaseException):
        trace = traceback.format_exception(type(value), value, value.__traceback__)
        return {"type": type(value).__name__, "message": str(value), "trace": "".join(trace)}
    if hasattr(value, "isoformat"):  # date, time, datetime
        return value.isoformat()
    if isinstance(value, (UUID, Decimal, os.PathLike)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(type(value)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    # A mapping or a sqlite3.Row.
    if hasattr(type(value), "keys") and hasattr(type(value), "__getitem__"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118
    if _is_listed(value):
        items = list(value)
        if isinstance(value, (set, frozenset)):
            with suppress(TypeError):
                items.sort()
        return items
    raise TypeError(
        f"{type(value).__name__} cannot be written as JSON: {_value(value)}; convert it first, for "
        "example with str(...) or list(...)"
    )


# Encoding a document that contains itself raises a RecursionError.
_encoder = partial(json.JSONEncoder, ensure_ascii=False, check_circular=False, allow_nan=False)
_json_text = _encoder(default=_as_json_value).encode


def _as_sent_value(value: Any) -> Any:
    """Call `_as_json_value` for a value that a handler returned or sent.

    Raise TypeError for an exception, because a stack trace may only be sent by an explicit call to
    `Response.json`.
    """
    if isinstance(value, BaseException):
        raise TypeError(
            f"{type(value).__name__} is an exception, and its text is internal: send your own "
            "text, or call response.json(...) to send the exception anyway"
        )
    return _as_json_value(value)


_sent_text = _encoder(default=_as_sent_value).encode


def _with_form(document: object, form: Mapping[str, Any] | None) -> object:
    """Return `document`, with the members of `form` added if the document is an object."""
    return {**form, **document} if form and isinstance(document, dict) else document


def _encode_json(
    document: object,
    source: object = None,
    write: Callable[[Any], str] = _json_text,
    name: str = "document",
) -> bytes:
    """Convert a document to JSON with `write`, and encode it as UTF-8.

    If this fails, the exception's message names the member and `source`.
    """
    try:
        # A lone surrogate can occur only in a string, where backslashreplace writes the same escape
        # as JSON.
        return write(document).encode("utf-8", "backslashreplace")
    except Exception as error:
        _explain(error, _unwritable(document, write, name), source)
        raise


def _unwritable(document: Any, write: Callable[[Any], object], name: str) -> str:
    """Return the name of the innermost member for which `write` fails.

    The name looks like `document["user"]["joined"]`.
    """
    with suppress(Exception):
        plain = document if isinstance(document, (dict, list, tuple)) else _as_json_value(document)
        for key, member in plain.items() if isinstance(plain, dict) else enumerate(plain):
            try:
                write(member)
            except Exception:
                shown = json.dumps(key, ensure_ascii=False) if isinstance(key, str) else _value(key)
                name = f"{name}[{_printable(shown):.80}]"
                # The length is limited because a document may contain itself.
                return name if len(name) > 200 else _unwritable(member, write, name)
    return name


# ---- HTML --------------------------------------------------------------------
#
# How does text get into a page without becoming markup? Everything that is not known to be HTML is
# escaped.
#
#     Markup("<b>{}</b>").format("<script>")           Markup("<b>&lt;script&gt;</b>")
#     _fill_template("<p>{price:.2f}", {"price": 1})   "<p>1.00"
#
# A value is known to be HTML if it is a `Markup`, an object with `__html__` or, on Python 3.14, a
# template string such as t"<p>{price}". Read the documentation of MarkupSafe alongside this
# section. On a first reading, you can skip template strings.


class Markup(str):
    """Mark text as HTML, so that `Response.html` does not escape it.

    If a handler returns Markup, it is sent as HTML.

    As in MarkupSafe, `+` (on either side), `%`, `format`, `join` and the other methods of str
    return Markup, and escape values that are not HTML. `str(markup)`, f-strings and `"...".join`
    produce plain text, which is escaped when you insert it into a page.
    """

    __slots__ = ()

    def __new__(cls, text: Any = "") -> Markup:
        """Mark `text` as HTML without escaping it."""
        return super().__new__(cls, _as_html(text) if _is_html(text) else text)

    @classmethod
    def escape(cls, value: object) -> Markup:
        """Return `value` as HTML: escaped, unless it already is HTML."""
        return cls(_as_html(value))

    def __html__(self) -> Markup:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def __add__(self, other: Any) -> Markup:
        joins = isinstance(other, str) or _is_html(other)
        return type(self)(super().__add__(self.escape(other))) if joins else NotImplemented

    def __radd__(self, other: Any) -> Markup:
        return (
            self.escape(other) + self
            if isinstance(other, str) or _is_html(other)
            else NotImplemented
        )

    def __mod__(self, values: Any) -> Markup:
        if hasattr(values, "keys"):
            values = _PercentValue(values)
        else:
            values = tuple(map(_PercentValue, values if isinstance(values, tuple) else (values,)))
        return type(self)(super().__mod__(values))

    def format(self, /, *args: Any, **kwargs: Any) -> Markup:
        """Format like str.format, but escape values and insert lists and tuples one item at a time.

        A value is not escaped if its `__html_format__(format_spec)` returns Markup.
        """
        return str.__new__(type(self), _format_template(self, args, kwargs))

    def format_map(self, mapping: Any) -> Markup:
        """Format like `format(**mapping)`, but without copying the mapping."""
        return str.__new__(type(self), _format_template(self, (), mapping))

    def join(self, items: Iterable[Any]) -> Markup:
        """Escape the items, and join them with this text as the separator."""
        return type(self)(super().join(map(self.escape, items)))


def _call_str(self: Markup, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of str; escape the text that it inserts, and return Markup."""
    if method.__name__ in ("center", "ljust", "replace", "rjust") and len(args) > 1:
        args = (args[0], self.escape(args[1]), *args[2:])
    made = method(self, *args, **kwargs)
    return type(self)(made) if isinstance(made, str) else type(made)(map(type(self), made))


for _method in (
    "__getitem__ __mul__ __rmul__ capitalize casefold center expandtabs ljust lower lstrip "
    "partition removeprefix removesuffix replace rjust rpartition rsplit rstrip split "
    "splitlines strip swapcase title translate upper zfill"
).split():
    setattr(Markup, _method, partialmethod(_call_str, getattr(str, _method)))


class _PercentValue:
    """Wrap a value for `Markup % value`, so that it is escaped when it becomes text.

    This class does not define `__index__`, because otherwise `%c` would turn 60 into `<`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: Any) -> _PercentValue:
        return _PercentValue(self.value[key])

    def __str__(self) -> str:
        return _as_html(self.value)

    def __repr__(self) -> str:
        return _escape(repr(self.value))

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


def _is_html(value: object) -> bool:
    # A template string (PEP 750) is recognized by its module, which older versions of Python do not
    # have.
    return hasattr(value, "__html__") or type(value).__module__ == "string.templatelib"


def _escape(text: str) -> str:
    # This calls the method of str, because a subclass may override it. MarkupSafe uses the same
    # character references.
    text = str.replace(text, "&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&#34;").replace("'", "&#39;")


def _as_html(value: Any) -> str:
    if hasattr(value, "__html__"):
        return cast(str, value.__html__())
    if _is_html(value):
        return "".join(part if isinstance(part, str) else _interpolated(part) for part in value)
    return _escape(str(value))


# Types whose text does not need to be escaped unless a format such as {:<<8} pads it.
_SAFE_TYPES = frozenset({int, float, bool, type(None)})


def _format_field(value: Any, format_spec: str = "") -> str:
    """Return the value of a field as HTML; for a list or tuple, join the HTML of its items."""
    kind = type(value)
    if kind is str:
        return _escape(format(value, format_spec))
    if kind in _SAFE_TYPES:
        text = format(value, format_spec)
        return _escape(text) if format_spec else text
    if kind is Markup and not format_spec:
        return cast(str, value)
    if hasattr(value, "__html_format__"):
        value = value.__html_format__(format_spec)
    elif not _is_html(value):
        if not format_spec and _is_listed(value):
            return "".join(map(_format_field, value))
        value = format(value, format_spec)
    elif format_spec:
        raise ValueError(
            f"{_name(type(value))} does not accept the format {format_spec!r}, because it does "
            "not have __html_format__"
        )
    return _as_html(value)


_NUMBER = re.compile("[0-9]{1,9}")
_BRACES = "to write a brace in a template, write it twice: {{ or }}"


def _explain_field(
    error: Exception, field: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """In the message of `error`, name the field that failed."""
    name = re.split(r"[.[]", field)[0]
    given = [*map(str, range(len(args))), *kwargs]
    if type(error) in (IndexError, KeyError) and name not in given:
        known = ", ".join(given) or "nothing"
        raise type(error)(f"no value for {{{name}}}, only for {known}; {_BRACES}") from None
    _explain(error, f"the value for {{{field}}}")


_FORMATTER = string.Formatter()


# A field's index in the list of texts, its name (an int for {} and {0}), its conversion, its
# format, and whether it consists of only a name or number and an optional format.
_TemplateField = tuple[int, Any, Any, str, bool]


def _parse_template(template: str) -> tuple[list[str], list[_TemplateField]]:
    """Return the texts of a template (with "" in place of each field) and its fields.

    Raise ValueError if the template is malformed.

    _parse_template("<b>{x:.2f}</b>")   (["<b>", "", "</b>"], [(1, "x", None, ".2f", True)])
    """
    texts: list[str] = []
    fields: list[_TemplateField] = []
    numbers = itertools.count()
    kinds = set()  # True for {}, False for {0}
    try:
        for text, name, format_spec, conversion in _FORMATTER.parse(template):
            texts.append(text)
            if name is None:
                continue
            key: Any = name
            if not name or _NUMBER.fullmatch(name):
                key = int(name) if name else next(numbers)
                kinds.add(not name)
            spec = format_spec or ""
            while "{}" in spec:
                spec = spec.replace("{}", f"{{{next(numbers)}}}", 1)
                kinds.add(True)
            is_named = isinstance(key, int) or key.isidentifier()
            is_plain = is_named and not conversion and "{" not in spec
            fields.append((len(texts), key, conversion, spec, is_plain))
            texts.append("")
        if len(kinds) > 1:
            raise ValueError("it contains both {} and {0}")
    except ValueError as error:
        _explain(error, _BRACES)
        raise
    return texts, fields


class _Templates(dict[str, Any]):
    """Keep parsed templates.

    A template may contain text from a visitor, so the total size of the templates that are kept is
    limited to 4 MiB. For this limit, the size of a template is its length plus 4 KiB. A template
    that is longer than 1 MiB is not kept.
    """

    left = 0

    def __missing__(self, template: str) -> Any:
        parsed = _parse_template(template)
        if len(template) <= 2**20:
            self.left -= len(template) + 2**12
            if self.left < 0:
                self.clear()
                self.left = 3 * 2**20
            self[template] = parsed
        return parsed


_TEMPLATES = _Templates()


def _format_template(template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Format a template like str.format, but insert each field as HTML.

    If a field cannot be formatted, the exception's message names it.
    """
    texts, fields = _TEMPLATES[template]
    pieces = texts.copy()
    for place, name, conversion, format_spec, is_plain in fields:
        if not is_plain and "{" in format_spec:
            from html import unescape

            # Fields inside a format, as in {price:{width}}, are not HTML.
            format_spec = unescape(_format_template(format_spec, args, kwargs))
        try:
            if isinstance(name, int):
                value = args[name]
            elif is_plain:
                value = kwargs[name]
            else:  # such as {user.name} or {row[0]}
                value = _FORMATTER.get_field(name, args, kwargs)[0]
            if conversion:
                value = _FORMATTER.convert_field(value, conversion)
            pieces[place] = _format_field(value, format_spec)
        except Exception as error:
            _explain_field(error, str(name), args, kwargs)
            raise
    return "".join(pieces)


def _interpolated(part: Any) -> str:
    value = _FORMATTER.convert_field(part.value, part.conversion)
    try:
        return _format_field(value, part.format_spec)
    except Exception as error:
        _explain(error, f"the value for {{{part.expression}}}")
        raise


# Text that matches this pattern is taken for the name of a file; a page would contain more text.
_FILE_NAME = re.compile(r"(?:[A-Za-z]:)?[\w./\\ -]+\.(?:x?html?|jinja2?|j2|tpl|tmpl|txt)")


def _fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template with values, and return the page.

    Raise ValueError if the template is the name of a file, or if it uses none of the values.
    """
    if type(template) is str and _FILE_NAME.fullmatch(template):  # not Markup
        raise ValueError(
            "html() takes the text of a page, not the name of a file: "
            f"Path({template!r}).read_text()"
        )
    if not values:
        return template
    if not _TEMPLATES[template][1]:
        raise ValueError(
            f"html() was given values that the template does not use: {', '.join(values)}; to use "
            f"one, add a field such as {{{next(iter(values))}}}"
        )
    return _format_template(template, (), values)


# ---- the request -------------------------------------------------------------
#
# What did the client ask for?
#
#     environ     {"REQUEST_METHOD": "POST", "PATH_INFO": "/items", "QUERY_STRING": "page=2",
#                 "wsgi.input": ..., ...}
#     request     .method "POST"   .path "/items"   .query["page"] "2"   .json {"title": "Tea"}
#
# An attribute of `Request` is computed when it is first read, and its value is kept. If it cannot
# be computed, reading it raises an HttpException with a 4xx status, the first time and every time
# after that. Headers set by a proxy are used only if the application has configured how many
# proxies it trusts. Read PEP 3333 and sections 4.2, 7.2, 8.3 and 12.5 of RFC 9110 alongside this
# section. On a first reading, you can skip `_raw_path`.

# The characters, other than letters and digits, that need no escaping in a URI or in a path (RFC
# 3986 sections 2 and 3.3).
_URI_SAFE = "%/:?#[]@!$&'()*+,;=-._~"
_PATH_SAFE = "/!$&'()*+,;=:@~"
_CONTENT_LENGTH = re.compile(r"[0-9]{1,18}")
# The beginning of a URL that may lead to another site: a scheme, or two slashes before a host.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*:(?://[^/?#]*)?|//")
_URL_HOST = re.compile(r"[ \t]*(?:[A-Za-z][A-Za-z0-9+.\-]*:)?//(?:[^/?#]*@)?([^/?#:\\]*)")


def _origin(url: str) -> str:
    """Return a URL's scheme, host and port, without the default port of the scheme (RFC 6454).

    Return "" if the URL is only a path.
    """
    found = _ORIGIN.match(url.strip(" \t").lower())
    origin = found[0] if found else ""
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


def _with_ascii_host(url: str) -> str:
    """Return a URL with its host encoded with IDNA; raise ValueError if it cannot be encoded.

    Python implements IDNA 2003, but browsers encode ß, ς and joiners differently, so the name
    that Python returns could belong to somebody else.
    """
    host = _URL_HOST.match(url)
    if host is None or host[1].isascii():
        return url
    if re.search("[ßẞς\u200c\u200d]", host[1]):
        raise ValueError("it contains ß, ς or a joiner: copy the host (xn--...) from a browser")
    return url[: host.start(1)] + host[1].encode("idna").decode() + url[host.end(1) :]


def _read_address(name: str) -> str:
    """Return an IP address as `ipaddress` writes it, or "" for any other name."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return ""


def _host_and_port(authority: str) -> tuple[str, str]:
    """Return the host and port of a Host header; all spellings of a host give the same result.

    The host is in lowercase, without brackets or a final dot. Addresses are in the form that
    `_read_address` returns.
    """
    bracketed, _, rest = authority.lower().rpartition("]")
    name, _, port = rest.partition(":")
    name = (bracketed[1:] or name).removesuffix(".")
    if ":" in name or name[-1:].isdigit():
        name = _read_address(name) or name
    return name, port


def _named_segments(path: str) -> list[str]:
    return list(filter(None, path.split("/")))


def _as_path(segments: Iterable[str]) -> str:
    """Return a path that begins with a single slash, because two slashes would introduce a host.

    If there are no segments, the path is "".
    """
    return "".join("/" + segment for segment in segments)


def _raw_path(environ: _Environ) -> str:
    """Return the path of the raw target if it contains a %2F, which is decoded in PATH_INFO.

    Return "" if the server does not provide the raw target, or if the raw target and PATH_INFO
    differ in anything but empty segments.
    """
    raw: str = (environ.get("REQUEST_URI") or environ.get("RAW_URI") or "").partition("?")[0]
    if "%2" not in raw:
        return ""
    if not raw.startswith("/"):  # absolute-form: RFC 9112 section 3.2.2
        raw = "/" + raw.partition("//")[2].partition("/")[2]
    path = _named_segments(environ.get("PATH_INFO", ""))
    above = _named_segments(environ.get("SCRIPT_NAME", ""))
    names = _unescaped_segments(raw)
    below = names[len(above) :]
    decoded_wholly = _named_segments("/".join(below))
    with_encoded_slashes = [name.replace("/", "%2F") for name in below]  # cheroot
    agrees = names[: len(above)] == above and path in (decoded_wholly, with_encoded_slashes)
    return raw if agrees else ""


def _unescaped_segments(raw_path: str) -> list[str]:
    return [_unescape_percent(segment) for segment in _named_segments(raw_path)]


def _path_segments(environ: _Environ) -> list[str]:
    """Return the decoded segments of PATH_INFO. A %2F in the raw target does not separate segments.

    Raise UnicodeError if the segments are not valid UTF-8.
    """
    segments = _named_segments(environ.get("PATH_INFO", ""))
    if raw := _raw_path(environ):
        depth = len(_named_segments(environ.get("SCRIPT_NAME", "")))
        segments = _unescaped_segments(raw)[depth:]
    return list(map(_wsgi_text, segments))


class _computed(Generic[_T]):
    """Compute a property once, and keep its value or the HttpException that it raised.

    Python's cached_property does not keep exceptions. Before Python 3.12, cached_property also uses
    a lock, so one slow upload would hold up all others.
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, request: Any, owner: object) -> _T:
        if request is None:
            return cast(_T, self)
        if self._name in request._failures:
            raise copy(request._failures[self._name])
        try:
            value = self._compute(request)
        except HttpException as error:
            # The traceback would keep the request in memory, so a copy without it is kept.
            request._failures = {**request._failures, self._name: copy(error)}
            raise
        # This class has no __set__, so from now on Python finds the value in the instance.
        setattr(request, self._name, value)
        return value


_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")  # keys without the prefix HTTP_ (PEP 3333)


def _field_key(name: str) -> str:
    """Return the key of a header field in a WSGI environment (PEP 3333)."""
    key = name.upper().replace("-", "_")
    return key if key in _UNPREFIXED else "HTTP_" + key


class _RequestHeaders(Fields[str]):
    """Map case-insensitive field names to the values of header fields in a WSGI environment."""

    __slots__ = ("_environ",)

    def __init__(self, environ: _Environ) -> None:
        super().__init__(noun="header")
        self._environ = environ

    def _find(self, name: str) -> Sequence[str]:
        key = _field_key(str(name))
        value = self._environ.get(key)
        # A server may set CONTENT_TYPE or CONTENT_LENGTH to "" if the client did not send it.
        return () if value is None or (not value and key in _UNPREFIXED) else (value,)

    def __iter__(self) -> Iterator[str]:
        keys = [key[5:] for key in self._environ if key.startswith("HTTP_")]
        names = [key.replace("_", "-").title() for key in (*_UNPREFIXED, *keys)]
        return iter(dict.fromkeys(filter(self.__contains__, names)))


class _BodyInput:
    """Read the bytes of a request's body.

    The body is as long as its Content-Length says. Without a Content-Length, it ends where the
    server signals the end of the input. If the body cannot be read, the request is answered with a
    4xx status.
    """

    def __init__(
        self, source: Any, length: int | None, limit: int, observer: _Observer | None
    ) -> None:
        self._observer = observer  # counts the bytes; None if they are not kept in memory
        # read1 returns a piece as soon as it arrives, while read waits for `size` bytes.
        self._read: _ReadFunction = getattr(source, "read1", None) or source.read
        self._sized = length is not None  # otherwise wsgi.input_terminated marks the end
        self._left = limit if length is None else length  # bytes that may still arrive

    def read(self, size: int = _PIECE) -> bytes:
        """Return up to `size` bytes, or b"" at the end.

        Raise HttpException 400 if the client has disconnected, 408 if it stalls, and 413 if the
        body is too large.
        """
        if self._sized and self._left < size:
            size = self._left
        if not size:
            return b""
        if self._observer is not None:
            size = self._observer.keep_body(size)
        try:
            data = self._read(size)
        except HttpException:  # raised by our own server
            raise
        except Exception as error:  # each server has its own classes for a broken connection
            # Before Python 3.10, these are two different classes.
            stalls = isinstance(error, (TimeoutError, socket.timeout))
            raise HttpException(408 if stalls else 400, "the body could not be read") from error
        if self._sized and not data:
            raise HttpException(400, f"the body ended {self._left:,} bytes early")
        if self._observer is not None and len(data) < size:
            self._observer.give_back_body(size - len(data))
        self._left -= len(data)
        if self._left < 0:
            raise HttpException(413, "the body is larger than the application allows")
        return data


class Request:
    """Represent a client's request. You get it as `context.request`.

    `environ` is the WSGI environment (PEP 3333), and `method` is the request method as the client
    sent it. Each of the other attributes is computed when you first read it. If an attribute cannot
    be computed, each attempt to read it raises an HttpException with the same status. Do not assign
    to the attributes.
    """

    _reader = ""  # the attribute through which the input was read: body, form or stream
    # The exceptions that were raised while attributes were computed.
    _failures: Mapping[str, HttpException] = MappingProxyType({})
    # The request headers on which the response depends, for its Vary header.
    _varies: frozenset[str] = frozenset()

    def __init__(self, app: WebApp, environ: _Environ) -> None:
        self._app = app
        self.environ = environ
        self.method: str = environ["REQUEST_METHOD"]
        # The functions to call, in reverse order, when the response is closed.
        self._closing: list[_Callback] = []

    # Its target.

    @_computed
    def path(self) -> str:
        """The decoded path, without the application's prefix (SCRIPT_NAME).

        It begins with a single slash, because a link that begins with two slashes leads to another
        host. The rest is as the client sent it, with U+FFFD in place of bytes that are not valid
        UTF-8.
        """
        return _wsgi_text("/" + self.environ.get("PATH_INFO", "").lstrip("/"), "replace")

    @property
    def query_string(self) -> str:
        """The part of the URL after the `?`, not decoded; "" if the URL has no query."""
        return str(self.environ.get("QUERY_STRING", ""))

    @_computed
    def scheme(self) -> str:
        """`http` or `https`, as reported by a trusted proxy or as seen by the server."""
        forwarded = self._forwarded("PROTO").lower()
        return forwarded if forwarded in ("http", "https") else str(self.environ["wsgi.url_scheme"])

    @_computed
    def host(self) -> str:
        """The host name and port that a trusted proxy or the client sent.

        If they are not valid, this is the name and port of the server.
        """
        name, port = self.environ["SERVER_NAME"], self.environ["SERVER_PORT"]
        name = f"[{name}]" if ":" in name else name
        own = f"{name}:{port}".removesuffix(":443" if self.scheme == "https" else ":80")
        hosts = (self._forwarded("HOST"), self.environ.get("HTTP_HOST", ""), own)
        # A server that listens on a Unix socket may have a path as its name.
        return next(filter(_is_authority, hosts), "localhost")

    @_computed
    def url(self) -> str:
        """The whole URL that the client requested, percent-encoded."""
        path = _STRAY_PERCENT.sub("%25", _raw_path(self.environ))
        if not path:
            decoded = self.environ.get("SCRIPT_NAME", "") + self.environ.get("PATH_INFO", "")
            path = decoded.replace("%", "%25") or "/"
        quoted = quote(path, "%" + _PATH_SAFE, "latin-1", "replace")
        url = f"{self.scheme}://{self.host}{quoted}"
        if self.query_string:
            url += "?" + quote(self.query_string, _URI_SAFE, "latin-1", "replace")
        return url

    @_computed
    def remote_address(self) -> str:
        """The IP address of the client, as reported by a trusted proxy or as seen by the server.

        It is "" if the address is not known.
        """
        found = _ADDRESS.fullmatch(self._forwarded("FOR"))
        if found:
            return found[found.lastindex or 0]  # without brackets or port
        return str(self.environ.get("REMOTE_ADDR") or "")

    def _forwarded(self, what: str) -> str:
        """Return the entry added by the outermost trusted proxy; earlier entries may be forged."""
        trusted = self._app._trusted_proxies
        sent = self.environ.get("HTTP_X_FORWARDED_" + what, "") if trusted else ""
        return sent.split(",")[-trusted:][0].strip(" \t") if sent else ""

    # Its header fields.

    @_computed
    def headers(self) -> Fields[str]:
        """The header fields, keyed by their case-insensitive names.

        The server has joined the values of repeated fields with commas. If a field is missing,
        `headers[name]` raises HttpException 400.
        """
        return _RequestHeaders(self.environ)

    @_computed
    def content_type(self) -> str:
        """The media type of the body, in lowercase and without parameters.

        It is "" if the client sent none.
        """
        return _media_type(self.environ.get("CONTENT_TYPE") or "")

    @_computed
    def content_length(self) -> int | None:
        """The length of the body in bytes, or None if the client sent no length.

        Raise HttpException 400 if the Content-Length is not a number.
        """
        sent: str = self.environ.get("CONTENT_LENGTH") or ""
        if sent and not _CONTENT_LENGTH.fullmatch(sent):
            raise HttpException(400, f"Content-Length is not a number: {sent[:80]!r}")
        return int(sent) if sent else None

    @_computed
    def cookies(self) -> Fields[str]:
        """The cookies, keyed by name (RFC 6265 section 5.4).

        If two cookies have the same name, `cookies[name]` is the first one, because browsers send
        the best match first. As in Werkzeug, quoted values are unquoted and unescaped. Values are
        decoded as UTF-8, or as latin-1 if they are not valid UTF-8.

        If a cookie is missing, `cookies[name]` raises HttpException 400. Reading this attribute
        adds `Vary: Cookie` to the response.
        """
        self._varies |= {"Cookie"}
        cookies: _TextPairs = []
        for piece in self.environ.get("HTTP_COOKIE", "").split(";"):
            name, value = piece.split("=", 1) if "=" in piece else ("", piece)
            name, value = name.strip(" \t"), _unquote_cookie(value.strip(" \t"))
            with suppress(UnicodeError):
                name, value = _wsgi_text(name), _wsgi_text(value)
            if name or value:
                cookies.append((name, value))
        return Fields(cookies, noun="cookie")

    def accept_json(self) -> bool:
        """Tell whether Accept lists application/json or text/javascript with a weight above 0.

        If it does, the default response is JSON. Wildcards such as `*/*` do not count. This call
        adds `Vary: Accept` to the response.
        """
        self._varies |= {"Accept"}
        return _names_json(self.environ.get("HTTP_ACCEPT", ""))

    def accepts(self, *media_types: str) -> str | None:
        """Return whichever of `media_types` the client prefers (RFC 9110 section 12.5.1).

        If several of them are equally acceptable, or if the client sends no Accept header, return
        the one that you listed first. Return None if the client does not accept any of them. This
        call adds `Vary: Accept` to the response.
        """
        for media_type in media_types:
            _check_header("Content-Type", media_type)
        self._varies |= {"Accept"}
        ranges = list(_parse_accept(self.environ.get("HTTP_ACCEPT", "").strip(" \t,") or "*/*"))
        quality = partial(_quality, ranges=ranges)
        return max(filter(quality, media_types), key=quality, default=None)

    # Its input.

    @_computed
    def query(self) -> Fields[str]:
        """The fields of the query string.

        Raise HttpException 400 if it is not valid UTF-8 or has more than `max_fields` fields.
        """
        return _parse_urlencoded(self.query_string, self._app._max_fields, 400)

    @_computed
    def body(self) -> bytes:
        """The whole body as bytes.

        Raise HttpException 413 if the body is longer than `max_body_size`, 400 if its
        Content-Length is malformed or if it ends early, and 408 if the client stalls. Raise
        RuntimeError if the body has already been read as a multipart form or through `stream`.
        """
        source = self._input("body", self._app._max_body_size)
        length = self.content_length
        whole: bytes = source.read(length or _PIECE)  # does not copy a body that is in memory
        if len(whole) == length:
            return whole
        pieces = itertools.chain([whole], iter(source.read, b""))
        return _join(pieces, sys.maxsize, "")  # `source` enforces the limit

    @_computed
    def stream(self) -> io.BufferedIOBase:
        """The body as a binary file, without a limit on its size.

        Raise the same exceptions as `body`, either immediately or while you are reading the file.
        """
        return _BodyFile(self._input("stream", sys.maxsize), _observer(self.environ))

    def _input(self, reader: str, limit: int) -> Any:
        """Return an object from which the body can be read for the attribute `reader`.

        Raise RuntimeError if the body has already been read through another attribute.
        """
        if self._reader == "body" and reader != "body":
            return BytesIO(self.body)
        if self._reader not in ("", reader):
            getattr(self, self._reader)  # if this failed before, it fails again
            raise RuntimeError(
                f"request.{reader}: the body was already read through request.{self._reader}"
            )
        self._reader = reader
        length = self.content_length
        if length is None and not self.environ.get("wsgi.input_terminated"):
            if "HTTP_TRANSFER_ENCODING" in self.environ:
                raise HttpException(411, "this server does not decode Transfer-Encoding")
            length = 0
        if length is not None and length > limit:
            raise HttpException(413, f"the body has {length:,} bytes, and the limit is {limit:,}")
        # A stream is not kept in memory. `_BodyFile` counts the bytes that each call returns.
        observer = None if reader == "stream" else _observer(self.environ)
        return _BodyInput(self.environ["wsgi.input"], length, limit, observer)

    @_computed
    def text(self) -> str:
        """The body as text, decoded with the charset of its Content-Type (UTF-8 by default).

        Raise HttpException 415 if the charset is unknown, 400 if the body cannot be decoded, and
        the same exceptions as `body`.
        """
        options = _parse_options(self.environ.get("CONTENT_TYPE") or "")[1]
        charset = options.get("charset", "utf-8").lower()
        if charset not in _CHARSETS:
            raise HttpException(415, f"unknown charset: {charset[:80]!r}")
        return _decode(self.body, charset)

    @_computed
    def json(self) -> Any:
        """The JSON document in the body (RFC 8259).

        Raise HttpException with one of these statuses, or the same exceptions as `body`:

        - 415 if the Content-Type is not application/json, text/json or a type that ends in `+json`.
        - 400 if the body is not valid JSON in UTF-8. NaN, Infinity, documents nested more than 200
          levels deep and integers of more than 4,300 digits are refused as well.
        - 413 if the body is longer than `max_form_memory`, or contains more than 131,072 values (or
          `max_form_memory` / 8, if that is more).

        If a member is missing, `json[name]` raises HttpException 400. If a member of a nested
        object is missing, an ordinary KeyError is raised, so the request is answered with 500.
        """
        if not self._is_json():
            raise HttpException(
                415, f"the content type is {self.content_type!r}, not JSON: send application/json"
            )
        return _parse_in_turn(_parse_json, self._small_body(), self._app._max_json_values)

    @property
    def json_object(self) -> dict[str, Any]:
        """The JSON document, which must be an object.

        Raise HttpException 400 if it is not an object, and the same exceptions as `json`.
        """
        document = self.json
        if not isinstance(document, dict):
            raise HttpException(400, f"the JSON document is not an object: {_value(document)}")
        return document

    def _is_json(self) -> bool:
        media_type = self.content_type
        return media_type in ("application/json", "text/json") or media_type.endswith("+json")

    def _small_body(self) -> bytes:
        """Return the body of a form or JSON document.

        A separate limit applies, because the parsed values take much more memory than the body.
        """
        limit = self._app._max_form_memory
        if (self.content_length or 0) > limit or len(body := self.body) > limit:
            raise HttpException(413, f"the form or JSON document has more than {limit:,} bytes")
        return body

    @property
    def form(self) -> Fields[str]:
        """The fields of a urlencoded or multipart form, without its files.

        If the body has any other type, there are no fields. Raise HttpException 400 if the form is
        malformed or not valid UTF-8, 413 if it exceeds `max_form_memory`, `max_fields` or
        `max_upload_size`, and 408 if the client stalls.
        """
        return self._parts[0]

    @property
    def files(self) -> Fields[UploadedFile]:
        """The files of a multipart form (RFC 7578).

        They are closed when the response is closed. Raise the same exceptions as `form`.
        """
        return self._parts[1]

    @_computed
    def _parts(self) -> tuple[Fields[str], Fields[UploadedFile]]:
        app, media_type = self._app, self.content_type
        if media_type == "application/x-www-form-urlencoded":
            text = self._small_body().decode("latin-1")
            return _parse_in_turn(_parse_urlencoded, text, app._max_fields, 413), _NO_FILES
        if media_type != "multipart/form-data":
            reason = f"the Content-Type is {media_type[:80]!r}, so there is no form"
            nothing: Fields[Any] = Fields(reason=reason)
            return nothing, nothing
        boundary = _parse_options(self.environ["CONTENT_TYPE"])[1].get("boundary", "")
        fields, files = _parse_multipart(
            self._input("form", app._max_upload_size).read,
            boundary.encode("latin-1", "replace"),
            max_fields=app._max_fields,
            max_form_memory=app._max_form_memory,
            observer=_observer(self.environ),
            closing=self._closing,
        )
        return Fields(fields), Fields(files)

    def body_all(self) -> dict[str, Any]:
        """Return all input in one dict: the query, the form, and the members of a JSON object.

        If a name occurs in several of these, the value from the last one is used. The value of a
        repeated field is a list. Files, path parameters and JSON documents that are not objects are
        left out. If the body is empty, its Content-Type does not matter.

        Raise the same exceptions as `query`, `form` and `json`. Looking up a name that is missing
        from the dict raises HttpException 400.
        """
        return self._all_input()

    def _all_input(self, *leave_out: type[Exception]) -> _Values:
        """Return `body_all()` without the parts that raise one of the exceptions in `leave_out`."""
        found: _Values = _InputObject()
        for part in ("query", "form", "json"):
            with suppress(*leave_out):
                if part == "json" and not (self._is_json() and self._small_body()):
                    continue
                given = getattr(self, part)
                if isinstance(given, Fields):
                    for name in given:
                        values = given.getall(name)
                        found[name] = values if len(values) > 1 else values[0]
                elif isinstance(given, dict):
                    found.update(given)
        return found


# ---- origins -----------------------------------------------------------------
#
# How does an application refuse a request that a page on another site makes with the user's cookies
# (cross-site request forgery, CSRF)?
#
#     app.post("/stop")(stop)        POST with "Origin: https://evil.example"  ->  403
#
# An origin is the scheme, host and port from which a page came (RFC 6454). Browsers send the origin
# of the page, and other clients do not send one. `WebApp._seal` adds `same_origin` to the
# before hooks of each route that may change something.

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")  # RFC 9110 section 9.2.1


def same_origin(context: WebContext) -> None:
    """Refuse a request that may change something if it comes from a page on another site.

    This is a `before` hook. It runs automatically for every route whose method may change
    something, unless the application sets `trusted_origins=["*"]`. In that case, add it to the
    scopes that need it: `scope.before(same_origin)`.

    These requests are allowed: GET, HEAD, OPTIONS and TRACE requests; requests from the site's own
    pages and from the origins in `trusted_origins`; and requests from clients that are not
    browsers. For any other request, HttpException 403 is raised, so your error hooks can build the
    error page.

    Browsers report in Sec-Fetch-Site (Fetch Metadata) where a request comes from. Older browsers
    send only Origin, whose host and port are compared with those of the request. The scheme is not
    compared, because TLS may be terminated at a proxy.
    """
    request = context.request
    site = request.environ.get("HTTP_SEC_FETCH_SITE")
    if request.method in _SAFE_METHODS or site in ("same-origin", "none"):
        return
    if site is None and "HTTP_ORIGIN" not in request.environ:  # not a browser
        return
    given = request.environ.get("HTTP_ORIGIN", "")
    origin = _read_origin(given)
    own = _read_origin(f"{origin.partition('://')[0]}://{request.host}")
    is_own = site is None and origin and origin == own
    if is_own or origin in context.app._trusted_origins:
        return
    advice = f"trusted_origins cannot list {given[:80]!r}"
    if origin:
        advice = f'if that page is yours, write WebApp(trusted_origins=["{origin}"])'
    raise HttpException(403, f"a {request.method} from a page on another site: {advice}")


def _read_origin(text: str) -> str:
    """Return an origin in its normal form, without the default port of its scheme (RFC 6454).

    Return "" if `text` is not an origin.
    """
    text = text.lower()
    scheme, _, authority = text.partition("://")
    if not _ORIGIN.fullmatch(text) or not _is_authority(authority):
        return ""
    host, port = _host_and_port(authority)
    if int(port or 0) > 65535:
        return ""
    host = f"[{host}]" if ":" in host else host
    return _origin(f"{scheme}://{host}:{port}".removesuffix(":"))


# A host name in a list. A name whose last label consists of digits would be read as an address.
_LISTED_NAME = re.compile(r"(?:[a-z0-9_-]+\.)*(?![0-9]+\Z)[a-z0-9_-]+")


def _check_list(what: str, listed: Any, example: str) -> frozenset[str]:
    """Return the listed origins (or hosts and ports) as a set, each in its normal form.

    Raise ValueError for an element that no browser could send.
    """
    hint = f'{what} must be a list such as ["{example}"], or ["*"] for all'
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise TypeError(f"{hint}; it is {_value(listed)}")
    texts = [*listed]
    if texts == ["*"]:
        return frozenset(texts)
    scheme, origins = "" if "://" in example else "http://", set()
    for text in texts:
        _check_text(f"each element of {what}", text)
        try:
            url = scheme + (f"[{text}]" if ":" in _read_address(text) else text)
            written = _with_ascii_host(url)
            if written != url:
                raise ValueError(f"write {written.removeprefix(scheme)!r}")
            origin = _read_origin(url)
            name, _ = _host_and_port(url.partition("://")[2])
            if not origin or not (_LISTED_NAME.fullmatch(name) or _read_address(name)):
                raise ValueError("no browser sends that")
        except ValueError as error:
            raise ValueError(f"{hint}; {_value(text)}: {error}") from None
        origins.add(origin.removeprefix(scheme))
    return frozenset(origins)


# ---- contents ----------------------------------------------------------------
#
# What does a response send? Its body is either bytes or an object with a method `begin`: a
# `_Document`, a `_Stream` or a `_FileBody`.
#
#     _Document({"a": 1}).begin(response, handler)    (b'{"a": 1}', {}, None)
#     _open_file("a.txt").begin(response, handler)    (file, {"etag": (("ETag", '"1-2"'),), ...},
#                                                     206)
#
# `begin` runs when the response is sent, and does everything that can fail, so that an error page
# can still be sent: it encodes a document, gets the first chunk of a stream, or chooses the range
# of a file. Messages name `source`, the function that provided the body. The result is the body for
# the server, header fields, and a status or None. Read RFC 9110 sections 8.8, 13 and 14 alongside
# this section. On a first reading, you can skip the rules for file names.

_TEXT = "text/plain; charset=UTF-8"
_HTML = "text/html; charset=UTF-8"
_JSON = "application/json"
_EVENT_STREAM = "text/event-stream"
_NO_HEADERS: _HeaderPairs = {}
# The result of `begin`: body, header fields and status.
_Begun = tuple[Any, _HeaderPairs, Any]


class _Document(NamedTuple):
    """Hold a JSON document; if it is an object, the response form is merged into it."""

    document: Any

    def begin(self, response: Response, source: object) -> _Begun:
        document = _with_form(self.document, response._form)
        return _encode_json(document, source), _NO_HEADERS, None


class _ValueReturned(RuntimeError):
    """Report that a generator of chunks has returned a value, which would be lost."""


def _draw(source: object, chunks: Iterator[bytes], harmless: type) -> Iterator[bytes]:
    """Yield the encoded chunks of `source`, except empty ones.

    Raise `_ValueReturned` if `source` is a generator that returns a value, unless the value is an
    instance of `harmless`.
    """
    # An empty chunk would end a chunked body. `map` and `filter` pass on the value that a generator
    # returns.
    returned = yield from filter(None, chunks)
    if returned is not None and not isinstance(returned, harmless):
        raise _ValueReturned(
            f"{_place(source)} returned {type(returned).__name__}, but only what a generator "
            "yields is sent: write yield instead of return"
        )


class _Stream:
    """Hold the chunks of a streamed body."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks: Iterator[bytes] | None = chunks

    def begin(self, response: Response, source: object) -> _Begun:
        chunks, self._chunks = self._chunks, None
        if chunks is None:
            raise RuntimeError(
                "the stream was already started, but it failed or was not sent: build another body"
            )
        _observer(response._request.environ).begin_stream(response._content_type)
        try:
            first = next(chunks, b"")
        except _ValueReturned as mistake:
            raise RuntimeError(str(mistake)) from None
        if first:
            response._refuse_to_build(source)  # the generator may have redirected the client
        elif (built := response._body) is not self:  # the generator has built another body
            if response.sent or isinstance(built, bytes):
                return built, _NO_HEADERS, None
            begun: _Begun = built.begin(response, source)
            return begun
        return itertools.chain((first,) if first else (), chunks), _NO_HEADERS, None


def _encode_chunk(chunk: Any) -> bytes:
    if isinstance(chunk, str):
        return chunk.encode("utf-8", "replace")
    if isinstance(chunk, _BYTES):
        return bytes(chunk)
    raise TypeError(f"a chunk of a stream must be str or bytes, not {type(chunk).__name__}")


_LINE_END = re.compile(r"\r\n|\r|\n")  # str.splitlines would also split at other characters
# The fields of an event, in the order in which they are sent. Browsers ignore an id that contains a
# NUL, and a retry that is not a number.
_EVENT_FIELDS = {
    "comment": "(?s).*",
    "id": "[^\0\r\n]*",
    "event": "[^\0\r\n]*",
    "retry": "[0-9]+",
    "data": "(?s).*",
}


def _encode_event(event: Any) -> bytes:
    """Encode a server-sent event (HTML standard, section 9.2).

    A str is the data of the event, and a dict contains the fields of the event by name.
    """
    fields = {"data": event} if isinstance(event, str) else event
    sent: list[str] = []
    if isinstance(fields, Mapping):
        # If the data is None, it is sent as JSON null.
        given = filter(fields.__contains__, _EVENT_FIELDS)
        sent = [name for name in given if name == "data" or fields[name] is not None]
    # Browsers drop events that have only the field "event".
    if not set(sent) - {"event"} or not set(fields) <= set(_EVENT_FIELDS):
        raise TypeError(
            f"an event must be a str, or a dict with some of the keys {', '.join(_EVENT_FIELDS)} "
            f"(event alone is not enough), not {event!r:.80}"
        )
    written = ""
    for name in sent:
        value = fields[name]
        text = (
            value
            if isinstance(value, str)
            else _encode_json(value, None, _sent_text, name).decode()
        )
        if not re.fullmatch(_EVENT_FIELDS[name], text):
            raise ValueError(
                f"the {name} of an event must be one line without NUL (only digits for retry), not "
                f"{text!r:.80}"
            )
        prefix = "" if name == "comment" else name
        written += "".join(f"{prefix}: {line}\n" for line in _LINE_END.split(text))
    return (written + "\n").encode("utf-8", "replace")


# The content types of files that are common on the web. They are listed here because the standard
# library's table differs from system to system. Each entry has the form subtype=extension, or is a
# single word if the two are the same.
_CONTENT_TYPES = {
    "." + (extension or subtype): f"{main_type}/{subtype}"
    for main_type, subtypes in {
        "application": "atom+xml=atom epub+zip=epub gzip=gz json json=map "
        "manifest+json=webmanifest msword=doc pdf rss+xml=rss vnd.ms-excel=xls "
        "vnd.ms-powerpoint=ppt vnd.oasis.opendocument.presentation=odp "
        "vnd.oasis.opendocument.spreadsheet=ods vnd.oasis.opendocument.text=odt "
        "vnd.openxmlformats-officedocument.presentationml.presentation=pptx "
        "vnd.openxmlformats-officedocument.spreadsheetml.sheet=xlsx "
        "vnd.openxmlformats-officedocument.wordprocessingml.document=docx "
        "wasm x-tar=tar xhtml+xml=xhtml xml xml=xsl zip",
        "audio": "aac flac mp4=m4a mpeg=mp3 ogg ogg=oga ogg=opus x-wav=wav",
        "font": "otf ttf woff woff2",
        "image": "avif bmp gif heic jpeg jpeg=jpg jxl png svg+xml=svg tiff tiff=tif webp "
        "x-icon=ico",
        "text": "calendar=ics css csv html html=htm javascript=js javascript=mjs markdown=md "
        "plain=txt tab-separated-values=tsv vtt x-python=py x-vcard=vcf",
        "video": "mp4 mpeg mpeg=mpg ogg=ogv quicktime=mov webm",
    }.items()
    for subtype, _, extension in (pair.partition("=") for pair in subtypes.split())
}


def _content_type(path: str) -> str:
    found = _CONTENT_TYPES.get(os.path.splitext(path)[1].lower(), "application/octet-stream")
    return found + "; charset=UTF-8" if found.startswith("text/") else found


class _FileBody(io.FileIO):
    """Send a file, or a range of it.

    This is also the file-like object that is passed to wsgi.file_wrapper (PEP 3333).
    """

    filename: str | None = None  # the name of a download
    on_close: _Callback | None = None  # called once

    def __init__(self, path: str) -> None:
        super().__init__(path, opener=lambda path, flags: os.open(path, flags | _UNBLOCKED))
        try:
            self.info = os.fstat(self.fileno())
            if not stat.S_ISREG(self.info.st_mode):
                raise NotFoundException(f"not a regular file: {path!r}")
        except BaseException:
            super().close()
            raise
        self.path = path
        self.size = self._end = self.info.st_size  # how many bytes to send, and where they end

    def begin(self, response: Response, source: object) -> _Begun:
        request, status, given = response._request, response._status, response._headers
        etag = f'"{self.info.st_mtime_ns:x}-{self.info.st_size:x}"'
        modified = self.info.st_mtime_ns // 10**9
        # A Last-Modified must not be in the future, and conditions are not compared with a time in
        # the future (RFC 9110 section 8.8.2.1).
        now = int(time.time())
        known = modified if modified <= now else None
        described: _HeaderPairs = {
            "etag": (("ETag", etag),),
            "last-modified": (("Last-Modified", _http_date(min(modified, now))),),
            "accept-ranges": (("Accept-Ranges", "bytes"),),
        }
        if self.filename is not None:
            disposition = ("Content-Disposition", _attachment(self.filename))
            described["content-disposition"] = (disposition,)
            if "content-disposition" in given:
                raise ValueError(
                    f"{_place(source)} set both the filename of a file and the header "
                    "Content-Disposition: set only one of them"
                )
        for key in described.keys() & given.keys():
            del described[key]  # keep headers that the application has set
        if status in (None, 200) and request.method in ("GET", "HEAD"):
            status = _evaluate_conditions(request, *response._validators(etag, known))
            if status == 206:
                status = self._take_part(request, given, described)
        return self, described, status

    def _take_part(self, request: Request, given: _HeaderPairs, described: _HeaderPairs) -> int:
        """Seek to the start of the requested range, and add a Content-Range to `described`.

        Return 206, or 200 if the whole file is to be sent.
        """
        if "none" in [value.lower() for _, value in given.get("accept-ranges", ())]:
            return 200
        whole = self.info.st_size
        part = _parse_range(request.environ["HTTP_RANGE"], whole)
        if part is None:
            return 200
        start, end = part
        self.seek(start)
        self.size = end - start
        self._end = end
        content_range = f"bytes {start}-{end - 1}/{whole}"
        described["content-range"] = (("Content-Range", content_range),)
        return 206

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes; raise OSError if the file has become shorter."""
        unread = max(0, self._end - self.tell())  # a server may have called seek()
        size = unread if size is None or size < 0 else min(size, unread)
        data = super().read(size) or b""
        if size and not data:
            raise OSError(
                f"{self.path!r} ended {unread:,} bytes early: it was truncated while being sent"
            )
        return data

    def __iter__(self) -> Iterator[bytes]:
        return iter(partial(self.read, _PIECE), b"")

    def close(self) -> None:
        super().close()
        callback, self.on_close = self.on_close, None
        if callback is not None:
            callback()


_UNBLOCKED = getattr(os, "O_NONBLOCK", 0)  # otherwise open() would wait until a FIFO has a writer
# Errors caused by the file name (ENXIO if it names a socket), and errors that occur when the
# machine is busy.
_NOT_THERE = "ENOENT ENOTDIR EISDIR ELOOP ENAMETOOLONG EINVAL EILSEQ ENXIO".split()
_BUSY = "EMFILE ENFILE ENOMEM EAGAIN".split()
_WINDOWS = os.name == "nt"
# Names that Windows does not allow for files: the names of devices (opening a device may block),
# names that contain characters with a special meaning (such as the colon in the name of a stream),
# and names with an ending that Windows strips.
_NO_NAME_ON_WINDOWS = (
    r"(?is:(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\.|$)"
    r'|.*(?:[\x00-\x1f"*:<>?|]|[. ]$))'
)


def _open_file(path: str) -> _FileBody:
    """Open a regular file.

    Raise NotFoundException if it does not exist, and HttpException 503 if the machine is busy.
    """
    try:
        if _WINDOWS and re.match(_NO_NAME_ON_WINDOWS, basename(path)):
            raise NotFoundException(f"not a valid file name: {path!r}")
        return _FileBody(path)
    except (OSError, ValueError) as error:
        _raise_known(error, path)
        raise


def _raise_known(error: Exception, path: str) -> None:
    """Raise HttpException 503 if the machine is busy, or NotFoundException if the name is wrong."""
    # A ValueError means that the name contains a NUL or cannot be encoded in this locale.
    code = errno.errorcode.get(getattr(error, "errno", errno.EINVAL))
    if code in _BUSY:
        raise HttpException(503, str(error)) from error
    if code in _NOT_THERE or isdir(path):  # Windows raises PermissionError for a directory
        raise NotFoundException(str(error)) from error


# Names that are never served: the empty name, hidden names, names with a slash or backslash,
# Windows short names (NAME~1.TXT) and, on Windows, the names that Windows does not allow.
_NOT_SERVED = re.compile(
    r"\Z|\.|.*[/\\]|[^.~]{1,6}~[0-9]{1,6}(?:\.[^.]{0,3})?\Z"
    + ("|" + _NO_NAME_ON_WINDOWS if _WINDOWS else ""),
    re.DOTALL | re.IGNORECASE,
)


# macOS reports the name of an open file as it is spelled in its folder, and so does realpath() on
# Windows. Elsewhere, a file system that ignores case may report the spelling used in the request.
_TELLS_SPELLING = sys.platform in ("darwin", "win32")
_OTHER_CASE = str.maketrans(string.ascii_letters, string.ascii_letters.swapcase())


def _are_served(names: Iterable[str]) -> bool:
    return not any(map(_NOT_SERVED.match, names))


def _names_below(root: str, path: str) -> list[str]:
    """Return the components of `path` relative to the folder `root`, or [] if it is elsewhere."""
    start = root + os.sep
    if path.startswith(start):
        return path[len(start) :].split(os.sep)
    # The root may be a link or end with a slash, or the system may spell it differently.
    names: list[str] = []
    while True:
        path, name = os.path.split(path)
        if not name:
            return []
        names.insert(0, name)
        if samefile(path, root):
            return names


def _real_path(file: _FileBody) -> str:
    """Return the real path of an open file; raise OSError if it cannot be determined.

    On some systems, the path is looked up a second time. If it then leads to a different file,
    raise NotFoundException.
    """
    if sys.platform == "darwin":
        answer = fcntl.fcntl(file, fcntl.F_GETPATH, bytes(1024))  # a path has at most 1,024 bytes
        return os.fsdecode(answer.partition(b"\0")[0])
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{file.fileno()}")
    path = realpath(file.path)
    if not os.path.samestat(os.stat(path), file.info):
        raise NotFoundException(f"the file was replaced in the meantime: {path!r}")
    return path


def _stands_in_folder(folder: str, name: str) -> bool:
    """Tell whether a folder contains exactly this name, and not just a different spelling of it.

    A file system that ignores case finds a file under any spelling of its name, so only a listing
    of the folder shows the real spelling. The listing may be long, so it is not read for names
    without letters (such as numbers and dates), which have only one spelling.
    """
    if re.fullmatch(r"[0-9 ._()+,-]*[0-9_()+-]", name):
        return True
    other = os.path.join(folder, name.translate(_OTHER_CASE))
    return not os.access(other, os.F_OK) or name in os.listdir(folder)


def _check_names(root: str, names: list[str], file: _FileBody) -> list[str]:
    """Return the components of the real path of `file`, relative to `root`.

    `names` are the components of the path that was used to open the file. Raise NotFoundException
    if the real path must not be served.
    """
    try:
        path = _real_path(file)
        real = _names_below(root, path)
        for _ in () if _TELLS_SPELLING else real:
            folder, name = os.path.split(path)
            if not _stands_in_folder(folder, name):
                raise NotFoundException(f"the name is spelled differently in its folder: {path!r}")
            path = folder
    except OSError as error:
        _raise_known(error, file.path)
        raise
    if real == names:
        return names
    # A link may lead through a hidden folder (Kubernetes makes such links), but not to a hidden
    # file. If there is no link, the system has mapped one of the names to a different one, which
    # may be hidden.
    paths = itertools.accumulate(names, os.path.join, initial=root)
    has_link = any(map(islink, itertools.islice(paths, 1, None)))  # below the root
    checked = real[-1:] if has_link else real
    if not checked or not _are_served(checked):
        raise NotFoundException(f"its real name is not served from {root!r}: {file.path!r}")
    return real


def _open_below(root: str, names: list[str]) -> tuple[_FileBody, list[str]]:
    """Open the file whose path consists of `root` and `names`.

    Return the file and the components of its real path, relative to `root`.

    Raise NotFoundException if the file does not exist or must not be served.

    The file is opened before its real path is checked; otherwise, a link could be replaced
    after the check.
    """
    path = os.path.join(root, *names)
    if not _are_served(names):
        raise NotFoundException(f"a file with this name is not served: {path!r}")
    try:
        file = _open_file(path)
        try:
            return file, _check_names(root, names, file)
        except BaseException:
            file.close()
            raise
    except PermissionError as error:
        raise NotFoundException(str(error)) from error


_NOT_PLAIN = re.compile(r'[^ -~]|["\\%]')  # characters that clients interpret in different ways


def _attachment(filename: str) -> str:
    """Return a Content-Disposition for a download (RFC 6266).

    If `filename` is not plain ASCII, the header also contains an ASCII name.
    """
    plain = _NOT_PLAIN.sub("_", filename)
    if plain == filename:
        return f'attachment; filename="{filename}"'
    encoded = quote(filename, "!#$&+^`|", errors="replace")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


# An element in a list of entity tags. A tag may contain commas, but no escapes (RFC 9110 section
# 8.8.3).
_LISTED_TAG = re.compile(r'(?:[^,"]|"[^"]*"?)+')


def _names_tag(tags: str, etag: str, exists: bool, *, strongly: bool) -> bool:
    """Tell whether a list of entity tags contains `etag`; a `*` matches if `exists` is true.

    In a strong comparison, a weak tag never matches (RFC 9110 section 8.8.3.2).
    """
    listed = list(filter(None, [tag.strip(" \t") for tag in _LISTED_TAG.findall(tags)]))
    if listed == ["*"]:
        return exists
    if strongly:
        return etag in listed and not etag.startswith("W/")
    return etag.removeprefix("W/") in [tag.removeprefix("W/") for tag in listed]


def _has_changed(modified: float | None, since: str | None) -> bool | None:
    """Tell whether `modified` is later than a date; return None if either is missing."""
    date = None if since is None else _parse_http_date(since)
    return None if date is None or modified is None else modified > date


def _evaluate_conditions(request: Request, etag: str, modified: float | None) -> int:
    """Return the status that the conditional headers ask for: 200, 304, or 206 if Range applies.

    `etag` and `modified` (seconds) are the validators of the current version, or "" and None if it
    does not exist. Raise HttpException 412 if a condition fails. The steps are numbered as in RFC
    9110 section 13.2.2.
    """
    field = request.environ.get
    reads = request.method in ("GET", "HEAD")
    exists = bool(etag) or modified is not None
    # 1. If-Match
    if (tags := field("HTTP_IF_MATCH")) is not None:
        if not _names_tag(tags, etag, exists, strongly=True):
            raise HttpException(412, "If-Match names another version")
    # 2. If-Unmodified-Since
    elif _has_changed(modified, field("HTTP_IF_UNMODIFIED_SINCE")):
        raise HttpException(412, "If-Unmodified-Since names an earlier version")
    # 3. If-None-Match
    if (tags := field("HTTP_IF_NONE_MATCH")) is not None:
        if _names_tag(tags, etag, exists, strongly=False):
            if reads:
                return 304
            raise HttpException(412, "If-None-Match names the current version")
    # 4. If-Modified-Since
    elif reads and _has_changed(modified, field("HTTP_IF_MODIFIED_SINCE")) is False:
        return 304
    # 5. Range and If-Range
    if request.method == "GET" and field("HTTP_RANGE") is not None:
        # A date in If-Range never matches: two versions saved within one second would have the
        # same date, and every file has an entity tag anyway.
        version = field("HTTP_IF_RANGE")
        if version is None or (version == etag and not etag.startswith("W/")):
            return 206
    # 6. Perform the request
    return 200


_RANGE = re.compile(
    r"bytes=[ \t]*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))[ \t]*", re.IGNORECASE
)


def _parse_range(value: str, size: int) -> tuple[int, int] | None:
    """Return the start and end of the range in a Range header.

    Return None if the header has several ranges or is malformed; such a header is ignored, as RFC
    9110 section 14.2 allows. Raise HttpException 416 if the range begins after the end of the file.
    """
    match = _RANGE.fullmatch(value)
    if match is None:
        return None
    first, last, suffix = match.groups()
    if last and int(last) < int(first):
        return None
    start = max(0, size - int(suffix)) if suffix else int(first)
    if start >= size:
        raise HttpException(416, headers={"Content-Range": f"bytes */{size}"})
    return start, min(size, int(last) + 1) if last else size


# ---- sessions ----------------------------------------------------------------
#
# How does the server recognize a browser without storing anything?
#
#     session     {"user": 7}
#     cookie      session=eyJ1c2VyIjo3fQ.1790000000.0bT...
#                 document in base64url, time in seconds, signature
#
# A session is JSON in a cookie. The cookie is signed with HMAC-SHA256, so the client can read the
# session, but not change it. A signed cookie stays valid until it reaches its maximum age. Read
# RFC 2104 alongside this section. On a first reading, you can skip `_signing_keys`.


def _signing_keys(secret_key: Any, cookie: str) -> list[bytes]:
    """Return the keys for the cookie with this name; the first key is used for signing.

    Raise ValueError if a key is too short to be safe.
    """
    if secret_key is None:
        return []
    secrets = secret_key if isinstance(secret_key, (list, tuple)) else [secret_key]
    keys = [secret.encode() if isinstance(secret, str) else secret for secret in secrets]
    if not keys or not all(isinstance(key, bytes) for key in keys):
        raise ValueError("secret_key must be a str or bytes, or a list of them")
    advice = """make one with: python3 -c "import secrets; print(secrets.token_hex())\""""
    for key in keys:
        if len(key.strip()) <= 5:  # anybody with a signed cookie can try all such keys
            raise ValueError(
                f"a secret_key of 5 bytes or less is not safe: it is easy to guess; {advice}"
            )
        if len(key) < 16 or len(set(key)) <= 5:
            warning = f"a secret_key of {len(key)} bytes can be guessed ({_here()}); {advice}"
            _report(None, logging.WARNING, warning)
    # Cookies with different names have different keys. In this hash, the secret is the message and
    # not the key (RFC 5869 section 2.2), so no other signature made with the secret is valid here.
    return [_digest(f"webapp session {cookie}".encode(), key) for key in keys]


def _digest(key: bytes, text: bytes) -> bytes:
    import hmac

    return hmac.digest(key, text, "sha256")


def _base64(data: bytes) -> bytes:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(data).rstrip(b"=")


def _plain(value: Any) -> Any:
    """Return a deep copy of a value that is kept in a session.

    Raise TypeError if JSON would turn the value into something else.
    """
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(
                    f"the key {_value(key)} would come back as a str: write str({_value(key)})"
                )
        return {key: _plain(member) for key, member in value.items()}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(
        f"{type(value).__name__} cannot be kept in a session, only str, int, float, bool, None, "
        f"and lists and dicts of them: {_value(value)}"
    )


def _session_text(values: object) -> str:
    return json.dumps(_plain(values), separators=(",", ":"), allow_nan=False)


class _Session:
    loaded = b"{}"
    old_stamp = 0  # the timestamp of a cookie that was signed with an older key

    def __init__(self, keys: Sequence[bytes], name: str, max_age: int, request: Request) -> None:
        if not keys:
            raise RuntimeError("context.session needs a key to sign with: WebApp(secret_key=...)")
        from base64 import urlsafe_b64decode
        from hmac import compare_digest

        self._keys = keys
        self.name = name
        self.max_age = max_age
        # Another site in the same domain may have set more cookies with this name.
        for cookie in request.cookies._find(name)[:8]:
            signed, _, signature = cookie.encode().rpartition(b".")
            document, _, stamp = signed.rpartition(b".")
            valid = [compare_digest(_base64(_digest(key, signed)), signature) for key in keys]
            # If the signature is valid, this server wrote the timestamp, so it is a number.
            if any(valid) and time.time() - int(stamp) <= max_age:
                self.loaded = urlsafe_b64decode(document + b"==")
                self.old_stamp = 0 if valid[0] else int(stamp)
                break
        self.values: _Values = json.loads(self.loaded)

    def cookie(self, source: object) -> str | None:
        """Return the value of the session cookie, or None if the session has not changed.

        If the session is empty, the value is "".
        """
        document = _encode_json(self.values, source, _session_text, "session")
        if document == self.loaded:
            return None
        return self.sign(document, time.time()) if self.values else ""

    def sign(self, document: bytes, stamp: float) -> str:
        """Return the value of a cookie that contains `document` and the timestamp `stamp`."""
        signed = _base64(document) + b".%d" % stamp
        return (signed + b"." + _base64(_digest(self._keys[0], signed))).decode()


# ---- the response ------------------------------------------------------------
#
# What does the client get?
#
#     response.code(201).header("X-Mine", "1").json({"id": 7})
#
# makes the dispatcher call
#
#     start_response("201 Created", [("Content-Type", "application/json"),
#                                    ("Content-Length", "9"), ("X-Mine", "1")])
#
# A response is built, sent and handed over to the server: `_build`, `_send`, `_hand_over`. Sending
# makes the status and the body final. Header fields can still change until the hand-over, so that
# `after` hooks can change them. They are kept in a dict that maps each lowercase name to its
# fields. This dict is never modified; instead, each change replaces it with a new dict, so that a
# reference to the old one keeps the earlier fields. Read RFC 9110 sections 6.4.1, 8.6 and 12.5.5
# alongside this section. On a first reading, you can skip `cookie`.

_TEXT_TYPES = re.compile(
    r"text/(?!html$).+|application/(?:javascript|xml)|(?!application/xhtml\+).+\+xml"
)
# The states of a response. A response is open whenever one of the application's functions starts.
# This function may then build a whole body, redirect the client or send the response.
_OPEN, _BUILT, _REDIRECTED, _SENT, _HANDED_OVER = range(5)
_COOKIE_KEY = "set-cookie "  # the prefix of the keys for cookies


class Response:
    """Build the response to the client. You get it as `context.response`.

    Every method that builds something returns the response, so you can chain calls:
    `response.code(201).json(item)`. If you build a second body, it replaces the first one.

    After `send`, changing the status or the body raises RuntimeError. RuntimeError is also raised
    if a function calls `redirect` and then builds, sends or returns a body, because the call
    probably lacks a `return`.
    """

    __slots__ = (
        "_body",
        "_content_type",
        "_form",
        "_headers",
        "_request",
        "_session",
        "_state",
        "_status",
    )

    def __init__(self, request: Request) -> None:
        self._request = request
        self._status: int | None = None  # if no status is set, `send` chooses 200 or 204
        self._headers = _NO_HEADERS
        # None until a body is built, then bytes or an object with the method `begin`. After
        # sending, this is the body for the server.
        self._body: Any = None
        self._content_type = _TEXT  # for the body, unless the application sets the header
        self._form: _Values | None = None  # the members added with put_form
        self._session: _Session | None = None  # loaded when the application asks for it
        self._state = _OPEN

    @property
    def status(self) -> int:
        """The current status; 200 until you set one by assignment or with `code`."""
        return self._status or 200

    @status.setter
    def status(self, status: int) -> None:
        self.code(status)

    @property
    def sent(self) -> bool:
        """Whether the status and the body are final."""
        return self._state >= _SENT

    @property
    def has_body(self) -> bool:
        """Whether a body has been built, even if it is empty."""
        return self._body is not None

    @property
    def form(self) -> Mapping[str, Any]:
        """A copy of the members that were added with `put_form`."""
        return dict(self._form or ())

    @property
    def headers(self) -> Headers:
        """The header fields set so far, keyed by their case-insensitive names.

        `getall(name)` returns all values of a repeated field.
        """
        own = {"content-type": (("Content-Type", self._content_type),)} if self.has_body else {}
        return Headers(itertools.chain(*{**own, **self._headers}.values()))

    def _refuse_if_sent(self) -> None:
        if self._state >= _SENT:
            raise RuntimeError("the response was already sent: its status and body are final")

    def _refuse_to_build(self, source: object = None) -> None:
        """Raise RuntimeError after `send`, or if the current function has redirected the client.

        `source` is the function that provides the body; by default, it is the calling function.
        """
        self._refuse_if_sent()
        if self._state == _REDIRECTED:
            who = _place(source)
            if source in (None, self.send):
                who = f"{_caller().f_code.co_name} ({_here()})"
            raise RuntimeError(
                f"{who} has redirected the client, and now builds another response: is a return "
                "missing? Write return context.response.redirect(...)"
            )

    # Status and header fields.

    def code(self, status: int) -> Response:
        """Set the status, an int from 200 to 599. Raise ValueError for anything else."""
        self._refuse_if_sent()
        self._status = _check_status(status)
        return self

    def header(self, name: str, value: str) -> Response:
        """Set a header field, replacing all fields with the same name.

        A Content-Length has an effect only for a stream. Raise TypeError if `value` is not a str.
        Raise ValueError if `name` is not a token or names a header that only the server may set, or
        if `value` contains anything but printable latin-1. Also raise ValueError for a Content-Type
        without a slash, an ETag without quotes, or a Last-Modified, Date or Expires that is not a
        date.
        """
        field = _check_header(name, value)
        key = field[0].lower()
        self._set_header(key, field)
        if key == "set-cookie":
            self._headers = {
                other: fields
                for other, fields in self._headers.items()
                if not other.startswith(_COOKIE_KEY)
            }
        return self

    def add_header(self, name: str, value: str) -> Response:
        """Add a header field, keeping earlier fields with the same name.

        Unlike other fields, a Content-Type or Content-Length replaces an earlier one. Raise the
        same exceptions as `header`.
        """
        return self._append_header(_check_header(name, value))

    def _append_header(self, field: _TextPair) -> Response:
        key = field[0].lower()
        earlier = () if key in ("content-type", "content-length") else self._headers.get(key, ())
        return self._set_header(key, *earlier, field)

    def check_conditions(self) -> bool:
        """Tell whether the client already has the current version (RFC 9110 section 13.2.2).

        Set the ETag or Last-Modified of the current version before you call this method. If the
        client has this version, this method sets the status to 304 and returns true. The handler
        then has nothing left to do.

        You can also call it before you change something, so that two clients do not overwrite each
        other's changes. In that case, set the ETag or Last-Modified of the old version, or neither
        if nothing exists yet. Raise HttpException 412 if the client insists on a different version
        (If-Match, If-Unmodified-Since), or insists that there is no version yet (If-None-Match).
        """
        self._refuse_if_sent()
        if _evaluate_conditions(self._request, *self._validators()) != 304:
            return False
        self._status = 304
        return True

    def _set_header(self, key: str, *fields: _TextPair) -> Response:
        if self._state == _HANDED_OVER:
            raise RuntimeError(
                "the response was already handed over to the server: its header fields are final"
            )
        self._headers = {**self._headers, key: fields}
        return self

    def cookie(
        self,
        name: str,
        value: str,
        *,
        max_age: int | None = None,
        expires: float | datetime | None = None,
        path: str = "/",
        domain: str | None = None,
        secure: bool | None = None,
        httponly: bool = True,
        samesite: str | None = "Lax",
        partitioned: bool = False,
    ) -> Response:
        """Set a cookie (RFC 6265bis section 4.1).

        Any earlier cookie of the response with the same name, domain and path is replaced.

        - `value`: any text. Text with spaces, quotes, commas, semicolons, backslashes, control
          characters or non-ASCII characters is quoted and escaped as in Werkzeug.
        - `max_age`: for how many seconds the browser keeps the cookie.
        - `expires`: when the cookie expires, as a timestamp or a datetime. If you set neither
          `max_age` nor `expires`, the cookie is kept until the browser is closed.
        - `path`, `domain`: the URLs for which the browser sends the cookie.
        - `secure`: whether the browser sends the cookie only over https. By default, this is true
          if the request came over https.
        - `httponly`: whether the cookie is hidden from scripts on the page.
        - `samesite`: "Lax", "Strict" or "None", or None to leave out the attribute.
        - `partitioned`: whether the browser keeps a separate cookie for each site that embeds this
          one.

        Raise ValueError for a cookie that browsers would refuse or misread, such as a cookie of
        more than 4,096 bytes (including the escapes), or `__Host-name` over http.
        """
        if secure is None:
            secure = self._request.scheme == "https"
        _check_flags(secure=secure, httponly=httponly, partitioned=partitioned)
        _check_text(f"the value of cookie {name!r}", value)
        pair = f"{name}={_quote_cookie(value)}"
        # In PEP 3333, each byte of the UTF-8 text is represented by one character.
        path = (path or "").encode("utf-8", "replace").decode("latin-1")
        domain, prefix = domain or "", name.lower()
        # Browsers silently truncate, drop or misread cookies that break these rules (RFC 6265bis
        # sections 4.1.3, 5.6 and 5.7).
        for kept, rule in (
            (_TOKEN.fullmatch(name), "its name must be a token"),
            (
                not _NOT_IN_COOKIE.search(path),
                f"percent-encode ; and control characters in its path {path!r:.80}",
            ),
            (len(pair) <= 4097, "more than 4,096 bytes: keep this much data on the server"),
            (
                samesite in (None, "Strict", "Lax", "None"),
                f"samesite must be Strict, Lax or None, not {samesite!r}",
            ),
            (
                secure or not _needs_https(name, samesite, partitioned),
                "samesite='None', partitioned and names such as __Host-a need secure=True or "
                "https; if a proxy speaks https, write WebApp(trusted_proxies=1)",
            ),
            (
                httponly or not prefix.startswith(("__http-", "__host-http-")),
                "its name needs httponly=True",
            ),
            (
                path + domain == "/" or not prefix.startswith("__host-"),
                "its name needs path='/' and no domain",
            ),
            (
                path[:1] in ("", "/") and len(path) <= 1024,
                f"path must begin with / and have at most 1,024 bytes, not {path!r:.80}",
            ),
            (
                _DOMAIN.fullmatch(domain) and len(domain) <= 1024,
                f"domain must be an ASCII name without a port, not {domain!r:.80}",
            ),
        ):
            if not kept:
                raise ValueError(f"cookie {name!r:.80}: {rule}")
        if max_age is not None:
            max_age = int(_check_seconds("max_age in seconds", max_age))
        attributes = (
            pair,
            max_age is not None and f"Max-Age={max_age}",
            expires is not None and f"Expires={_http_date(_time_stamp(expires))}",
            domain and f"Domain={domain}",
            path and f"Path={path}",
            secure and "Secure",
            httponly and "HttpOnly",
            samesite and f"SameSite={samesite}",
            partitioned and "Partitioned",
        )
        line = "; ".join(attribute for attribute in attributes if attribute)
        # A later cookie with the same key replaces this one. No header field has such a key,
        # because field names do not contain spaces.
        return self._set_header(f"{_COOKIE_KEY}{name};{domain};{path}", ("Set-Cookie", line))

    def delete_cookie(
        self,
        name: str,
        *,
        path: str = "/",
        domain: str | None = None,
        secure: bool | None = None,
        httponly: bool = True,
        samesite: str | None = "Lax",
        partitioned: bool = False,
    ) -> Response:
        """Tell the browser to forget a cookie.

        Pass the same arguments as when you set the cookie. The browser identifies the cookie by its
        name, domain, path and `partitioned`, and checks the other attributes in the same way as
        when a cookie is set. By default, `secure` is true if the request came over https, or if the
        other arguments require it.
        """
        if secure is None and _needs_https(name, samesite, partitioned):
            # If the application is not told about a proxy, it takes a request over https for http.
            secure = True
        return self.cookie(
            name,
            "",
            max_age=0,
            expires=0,
            path=path,
            domain=domain,
            secure=secure,
            httponly=httponly,
            samesite=samesite,
            partitioned=partitioned,
        )

    # Bodies.

    def _build(self, body: bytes | _Document | _Stream | _FileBody, content_type: str) -> Response:
        self._refuse_to_build()
        self._body = body
        self._content_type = content_type
        self._state = _BUILT
        return self

    def text(self, text: str, content_type: str = _TEXT) -> Response:
        """Build a text body in UTF-8; lone surrogates become `?`.

        `content_type` may be text/*, application/javascript, or an XML type such as image/svg+xml.
        The charset is added if it is missing. Raise ValueError for HTML (use `html`), for all other
        types, and for a charset other than UTF-8.
        """
        _check_text("the argument of text()", text)
        if content_type != _TEXT:
            content_type = _check_header("Content-Type", content_type)[1]
            media_type, options = _parse_options(content_type)
            is_utf_8 = options.get("charset", "utf-8").lower() in ("utf-8", "utf8")
            if not is_utf_8 or not _TEXT_TYPES.fullmatch(media_type):
                raise ValueError(
                    f"text() does not send {content_type}: use html() for HTML, json() for JSON, "
                    "and body() for bytes of any other type or charset"
                )
            if "charset" not in options:
                content_type += "; charset=UTF-8"
        return self._build(text.encode("utf-8", "replace"), content_type)

    def html(self, template: str | Template, /, **values: Any) -> Response:
        """Build an HTML body: `html("<p>Hello {name}", name=name)`.

        The template is filled in as by `str.format`. Each value is escaped unless it is a `Markup`,
        and the items of a list, tuple or iterator are inserted one after the other. Double each
        literal brace. Without `values`, the template is sent unchanged, including its braces. In
        Python 3.14, you can also pass a template string that contains its values: t"<li>{name}".

        Escaped values are safe in text and in quoted attributes. They are not safe inside <script>
        or <style>, or in an href, where a value may begin with "javascript:".
        """
        if isinstance(template, str):
            text = _fill_template(template, values)
        elif _is_html(template) and not values:
            text = _as_html(template)
        else:
            raise TypeError(
                f"html() takes a str, or a template string without values, not {template!r:.80}"
            )
        return self._build(text.encode("utf-8", "replace"), _HTML)

    def body(self, data: bytes, content_type: str) -> Response:
        """Build a body from bytes. Raise TypeError for anything else, including a str."""
        if not isinstance(data, _BYTES):
            raise TypeError(
                f"a body must be bytes, not {type(data).__name__}; use text() or html() for a str"
            )
        return self._build(bytes(data), _check_header("Content-Type", content_type)[1])

    def json(self, document: Any, value: Any = _NOT_GIVEN) -> Response:
        """Build a JSON body.

        `json(document)` builds a whole document. `json(name, value)` adds a member to the object
        that has been built so far.

        The document is encoded when the response is sent. Dates become ISO 8601 strings; UUIDs,
        Decimals and paths become strings; dataclasses become objects; sets and iterators become
        arrays. NaN raises ValueError. An exception object is written with its type, message and
        stack trace, so be careful not to pass one by accident.
        """
        if value is _NOT_GIVEN:
            return self._build(_Document(document), _JSON)
        _check_text("the name in json(name, value)", document)
        self.put_form({})
        so_far = self._body.document
        # The old object is not changed: the application may own it, or `_restore` may need it.
        self._body = _Document({**(so_far if isinstance(so_far, dict) else {}), document: value})
        return self

    def put_form(self, members: Mapping[str, Any]) -> Response:
        """Add members to the response form, which is sent as part of a JSON document.

        The members are left out if the document is not an object. If the form and the document have
        a member with the same name, the document's member is sent.
        """
        form = {**(self._form or {}), **members}
        document, state = {}, _OPEN
        if isinstance(self._body, _Document):
            document, state = self._body.document, self._state
        self._build(_Document(document), _JSON)
        self._form, self._state = form, state  # adding members does not count as building a body
        return self

    def redirect(self, location: str, status: int = 303, *, external: bool = False) -> Response:
        """Build a redirect.

        - `location`: a path or a URL, which may be relative. It is percent-encoded where necessary,
          but any `%XX` in it is kept. A host name that is not ASCII is converted with IDNA. If the
          name contains ß, ς or a joiner, you must write it as xn--... yourself.
        - `status`: 300 to 399, except 304.
        - `external`: whether the location may lead to another site. Never set it for a location
          that was chosen by a client.

        Raise HttpException 400, which is also a ValueError, if the location is empty, or if it
        leads to another site and `external` is not set. A location stays on this site if it begins
        with neither a scheme nor two slashes, or if it begins with the origin of the request.

        After this call, the same function may still set the status, headers and cookies, or call
        `redirect` again. If it builds, sends or returns another body, RuntimeError is raised. To
        redirect with a page of your own, write `html(page).code(303).header("Location", url)`.
        """
        _check_flags(external=external)
        _check_text(
            "the location of redirect()", location, ": context.url(handler) gives a handler's path"
        )
        if not 300 <= _check_status(status) <= 399 or status == 304:
            raise ValueError(
                f"the status of a redirect must be 300 to 399, except 304, not {status!r}"
            )
        if not location:
            raise _BadField("location", "the location of redirect() is empty")
        try:
            location = _with_ascii_host(location)
        except ValueError as error:
            raise _BadField("location", f"not a valid host: {location!r:.80}: {error}") from error
        escaped = quote(_STRAY_PERCENT.sub("%25", location), _URI_SAFE, errors="surrogatepass")
        own = _origin(f"{self._request.scheme}://{self._request.host}")
        if not external and _origin(escaped) not in ("", own):
            raise _BadField(
                "location",
                f"redirect() would leave this site for {location!r:.80}; external=True allows that",
            )
        self.code(status)
        self._state = _OPEN  # because a function may call this method twice
        self._build(_STATUS_LINES[status].encode(), _TEXT)
        self._set_header("location", ("Location", escaped))
        self._state = _REDIRECTED
        return self

    def stream(self, iterable: Iterable[str | bytes], content_type: str = _TEXT) -> Response:
        """Build a body of chunks, which are produced one at a time while the client reads them.

        - `iterable`: yields chunks of str or bytes. Its `close()` is called no matter how the
          stream ends.
        - `content_type`: the media type, by default plain text.

        The first chunk is produced when the response is sent, so an exception before this chunk
        leads to an error response as usual. After an exception in a later chunk, the connection is
        closed early, so that the client notices the error.

        A generator must yield everything that it sends. If it returns a value before the first
        chunk, RuntimeError is raised; after the first chunk, an error is logged.
        """
        return self._build_stream(iterable, _encode_chunk, content_type)

    def events(self, iterable: Iterable[str | Mapping[str, Any]]) -> Response:
        """Build a stream of server-sent events (HTML standard, section 9.2).

        The browser reads the events with EventSource. An event is either a str, which is sent as
        its data, or a dict with these keys:

        - `data`: a str, or any other value, which is sent as JSON. If the value contains an
          exception, TypeError is raised.
        - `event`: the type of the event.
        - `id`: what the browser sends as Last-Event-ID when it reconnects.
        - `retry`: how many milliseconds the browser waits before reconnecting.
        - `comment`: text that the browser ignores.

        Keys other than `data` are left out if their value is None. The head of the response is sent
        with the first event, so yield `{"comment": ""}` at once if the first event may take a
        while. The response gets `Cache-Control: no-cache`, and also `X-Accel-Buffering: no`, so
        that proxies do not hold back the events.
        """
        self._build_stream(iterable, _encode_event, _EVENT_STREAM)
        for name, value in (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")):
            if name.lower() not in self._headers:
                self.header(name, value)
        return self

    def _build_stream(
        self, iterable: Iterable[Any], write: Callable[[Any], bytes], content_type: str
    ) -> Response:
        # The iterable is registered before anything can fail, because the caller does not close it.
        self._close_later(iterable)
        if isinstance(iterable, (Mapping, FunctionType, MethodType, *_BYTES)) or (
            isinstance(iterable, str) and write is _encode_event
        ):
            # Iterating over a single event or chunk would split it into pieces.
            raise TypeError(
                f"a stream must be an iterable of chunks or events, not {_value(iterable)}; if it "
                "is a function, call it"
            )
        chunks = iter(iterable)
        if chunks is not iterable:
            self._close_later(chunks)
        content_type = _check_header("Content-Type", content_type)[1]
        return self._build(_Stream(_draw(chunks, map(write, chunks), Response)), content_type)

    def _validators(
        self, etag: str = "", modified: float | None = None
    ) -> tuple[str, float | None]:
        """Return the application's ETag and Last-Modified (in seconds), or the given defaults."""
        if fields := self._headers.get("etag"):
            etag = fields[0][1]
        if fields := self._headers.get("last-modified"):
            modified = _parse_http_date(fields[0][1])
        return etag, modified

    def _close_later(self, iterable: object) -> None:
        close = getattr(iterable, "close", None)
        if close is not None:
            self._request._closing.append(close)

    def file(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> Response:
        """Build a body from a file, with ETag and Last-Modified.

        - `path`: the path of the file. With `root`, it is relative to that directory and must use
          slashes as separators.
        - `root`: a directory. Set it whenever `path` comes from a client, because without `root`
          any file can be sent. With `root`, NotFoundException is raised for names that are absolute
          or lead out of `root`, and for dot files, directories and everything else that
          `Scope.static` does not serve. It is also raised for links that lead out of `root`, and if
          `root` does not exist.
        - `filename`: makes the file a download with this name (RFC 6266).
        - `content_type`: the media type, which by default depends on the file's extension.

        Conditional requests and requests for a single range of bytes are answered as described
        in RFC 9110 sections 13 and 14 (with 304, 412, 206 or 416 where required), unless you have
        set a status other than 200.

        Header fields that you have set are kept, and the conditions in requests are compared with
        your ETag and Last-Modified. If you have set `Accept-Ranges: none`, the whole file is sent.
        If you set a Content-Disposition and also `filename`, sending the response raises
        ValueError.

        Raise NotFoundException if the file does not exist, and HttpException 503 if the machine
        cannot open more files.
        """
        self._refuse_to_build()
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(
                f"file() takes the path of a file, not {_value(path)}: use body(data, "
                "content_type) for bytes, and stream(file) for an open file"
            )
        if filename is not None:
            _check_text("the filename of a download", filename)
        if root is None:
            file = _open_file(os.fsdecode(path))
        elif isdir(root):
            file, _ = _open_below(os.fsdecode(root), os.fsdecode(path).split("/"))
        else:
            raise NotFoundException(f"there is no directory {_value(root)}")
        return self._build_file(file, filename, content_type)

    def _build_file(
        self, file: _FileBody, filename: str | None = None, content_type: str | None = None
    ) -> Response:
        self._close_later(file)
        file.filename = filename
        checked = content_type and _check_header("Content-Type", content_type)[1]
        return self._build(file, checked or _content_type(file.path))

    # Sending.

    def send(self, body: Any = None) -> Response:
        """Send the response, which makes its status and body final.

        `body` may be anything that a handler may return: a str (plain text), Markup (HTML), bytes,
        a dict or list (JSON), or an iterator of chunks. Without `body`, the body that has been
        built so far is sent.

        Raise TypeError for any other body, and for an exception inside a dict or list. If the body
        cannot be encoded, or the first chunk of a stream cannot be produced, the exception is
        raised here. A second `send` raises RuntimeError and changes nothing.
        """
        self._send(body, self.send)
        return self

    def _send_if_answered(self, value: Any, source: object, guard: str = "") -> bool:
        """Send the response if `source`, which has returned `value`, has answered the request.

        Return whether this function has answered the request (see `Scope.before`). If the function
        runs before the handler, `guard` says what kind of function it is. For other functions,
        `guard` is "", and building a body does not count as an answer.
        """
        if value is None and self._status is None and not self._state:  # _OPEN is 0
            return False  # nothing was returned, set, built or sent
        if value is None or value is self:
            if value is None:
                has_answered = self.status >= 300 or self._state > (_OPEN if guard else _REDIRECTED)
            else:
                has_answered = self._status is not None or self._body is not None
            if not has_answered:
                self._state = _OPEN  # so that the next function starts afresh
                return False
            if value is None and guard:
                # The author may have forgotten a return, and may wonder why no handler runs.
                _observer(self._request.environ).explain(f"answered by {guard} {_place(source)}")
            if self.sent:
                return True
        self._send(value, source)
        return True

    def _send(self, value: Any = None, source: object = None) -> None:
        """Send `value`, or the body built so far if `value` is None or the response itself.

        Messages name `source`, the function that provided the value.
        """
        if self._state > _BUILT and (self.sent or (value is not None and value is not self)):
            self._close_later(value)
            self._refuse_to_build(source)
        if type(value) is str:  # most handlers return a str
            self._body, self._content_type = value.encode("utf-8", "replace"), _TEXT
        elif value is not None and value is not self:
            self._build_from(value, source)
        body, status, described = self._body, self._status, _NO_HEADERS
        if body is not None and not isinstance(body, bytes):
            body, described, status = body.begin(self, source)
        if self._session is not None and (cookie := self._session.cookie(source)) is not None:
            self.cookie(self._session.name, cookie, max_age=self._session.max_age if cookie else 0)
        # From here on, nothing can fail. The first chunk of a stream may have set a status or
        # header fields, so they are read only now.
        if described:
            self._headers = {**self._headers, **described}
        self._body = body
        self._status = status or self._status or (204 if body is None else 200)
        self._state = _SENT

    def _build_from(self, value: Any, source: object) -> None:
        if isinstance(value, (dict, list)):
            self._body = _encode_json(_with_form(value, self._form), source, _sent_text)
            self._content_type = _JSON
        elif _is_html(value):
            self.html(value)
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, _BYTES):
            self.body(bytes(value), "application/octet-stream")
        elif hasattr(value, "__next__"):
            self.stream(value)
        else:
            kind = value if isinstance(value, type) else type(value)
            hint = (
                f"; or call it: {_name(value)}(); put a decorator below @app.get(...)"
                if callable(value)
                else ""
            )
            if issubclass(kind, BaseException):
                hint = f"; to raise an exception, write raise {_name(kind)}(...)"
            if kind is tuple:
                hint = "; for `return x, 201` write context.response.code(201), and then return x"
            raise TypeError(
                f"{_place(source)} cannot answer with {type(value).__name__}; "
                "use str, bytes, dict, list, Markup or an iterator, or call context.response "
                "(code(404) for a status, json(document) for any other document)" + hint
            )

    # If a function fails before the response is sent, the dispatcher undoes the function's changes.
    # The changes made by each before hook are undone separately, but those made by the executors
    # and the handler are undone together. Headers that earlier functions have set are kept. The
    # body, the form and all changes to the session are always discarded. If an error hook fails,
    # everything that it did is undone. If an after hook fails, only the headers that it set are
    # undone.

    def _save(self) -> _Values:
        """Return everything that `_restore` needs, including a copy of the session."""
        saved = {name: getattr(self, name) for name in Response.__slots__}
        if self._session is not None:
            # If the session cannot be copied, the original is kept; saving it raises an exception.
            with suppress(Exception):
                saved["_session"] = deepcopy(self._session)
        return saved

    def _restore(self, saved: _Values) -> None:
        for name, value in saved.items():
            setattr(self, name, value)

    def _undo_step(self, headers: _HeaderPairs, status: int) -> None:
        """Undo what a failed function did: restore the headers, and set the status."""
        self._headers, self._status, self._body, self._content_type = headers, status, None, _TEXT
        self._form = self._session = None

    def _renew_session(self, session: _Session) -> None:
        """Sign a session with the first key, but keep its old timestamp.

        If the application has set this cookie itself, the application's cookie is kept. No cookie
        is set on a response that a shared cache may store.
        """
        stamp, given = session.old_stamp, self._headers
        is_public = "public" in str(given.get("cache-control")).lower()
        has_cookie = "set-cookie" in given or f"{_COOKIE_KEY}{session.name};;/" in given
        if not is_public and not has_cookie:
            with suppress(ValueError):  # the name of the cookie may require https
                value = session.sign(session.loaded, stamp)
                self.cookie(session.name, value, expires=stamp + session.max_age)

    def _send_default(self, public: str | None = None) -> None:
        """Send the default body of an error response, which reveals nothing about the cause.

        `public` is text that the application has written for visitors. It replaces the phrase for
        the status.
        """
        status = self.status
        if self._request.accept_json():
            message = f'"{_PHRASES[status]}"' if public is None else _encode_json(public).decode()
            text = f'{{"error": {{"status": {status}, "message": {message}}}}}'
            content_type = _JSON
        else:
            text = _STATUS_LINES[status] if public is None else public
            content_type = _TEXT
        self._body = text.encode("utf-8", "replace")
        if "content-type" in self._headers:  # a hook or the exception has set it
            self._set_header("content-type", ("Content-Type", content_type))
        self._content_type = content_type
        self._send()

    def _hand_over(self, start_response: _StartResponse) -> bytes | Iterator[bytes] | _FileBody:
        """Pass the status and header fields to the server, and return the body."""
        self._state = _HANDED_OVER
        if varies := self._request._varies:  # RFC 9110 section 12.5.5
            names = sorted(varies)
            if said := self._headers.get("vary"):
                listed = ", ".join([*(value for _, value in said), *names]).split(", ")
                names = [*{name.lower(): name for name in listed}.values()]
            self._headers = {**self._headers, "vary": (("Vary", ", ".join(names)),)}
        status, body = self._status or 200, self._body
        is_bodiless = status in _BODILESS
        if body is None or is_bodiless:
            body = b""
        length = len(body) if isinstance(body, bytes) else getattr(body, "size", None)
        headers = [("Content-Type", self._content_type), ("Content-Length", f"{length}")]
        if length is None:
            del headers[1]
        if self._headers:  # most responses have no other headers
            for key, fields in self._headers.items():
                if key == "content-type":
                    headers[0] = fields[0]
                elif key != "content-length" or length is None:
                    headers += fields
        # A 204 or 304 has neither Content-Type nor Content-Length (RFC 9110 sections 8.6 and
        # 6.4.1).
        if is_bodiless and status != 205:
            del headers[:2]
        start_response(_STATUS_LINES[status], headers)
        return b"" if self._request.method == "HEAD" else body


# ---- executors ---------------------------------------------------------------
#
# Which functions run for a route? Its executors run first, and then its handler. An executor does
# part of the work before the handler runs, such as checking a form. If an executor calls `cancel`,
# the later executors and the handler do not run, and the executor's `on_cancel` answers the
# request. Each executor or handler is turned into a function that takes the context:
#
#     _make_call(user, ["id"])(context)      for `def user(context, id)`: user(context, 7)
#
# Declaring a function that the dispatcher could not call raises an exception. On a first reading,
# you can skip `_handler_call`.

_Call = Callable[..., object]


def _signature(function: _Call) -> inspect.Signature:
    """Return the signature of `function`.

    A builtin without a signature is assumed to take any arguments. For a decorated function, this
    is the signature of the outer function, which is the one that gets called. Raise TypeError for
    `async` functions.
    """
    for side in (function, type(function).__call__):
        if inspect.iscoroutinefunction(side) or inspect.isasyncgenfunction(side):
            raise _mistake(
                TypeError, f"{_name(function)} is async, but WSGI is not: write it with def"
            )
    return _own_signature(function)


def _own_signature(function: _Call) -> inspect.Signature:
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return inspect.signature(lambda *_, **__: None)


def _signatures(function: Any) -> list[inspect.Signature]:
    """Return the signatures with which a function may be called; its own comes last.

    A decorator that takes `*args` or `**kwargs` usually passes them on. So if it uses
    functools.wraps, the signature of the inner function is more precise, and comes first.
    """
    own = _own_signature(function)
    inner = getattr(function, "__wrapped__", None)
    if not callable(inner) or not _open_ends(own):
        return [own]
    if inspect.ismethod(function):
        inner = MethodType(inner, function.__self__)
    return [*_signatures(inner), own]


def _open_ends(signature: inspect.Signature) -> set[Any]:
    """Return which of the parameter kinds `*args` and `**kwargs` occur in a signature."""
    kinds = {p.kind for p in signature.parameters.values()}
    return kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _takes(signature: inspect.Signature, *args: object, **kwargs: object) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _slips(name: str) -> set[str]:
    """Return a name, and the same name with each of its letters left out in turn.

    If the results for two names have an element in common, one name may be a misspelling of the
    other.
    """
    name = name.replace("_", "").lower()
    ends = name, re.sub("l?ed$", "", name)  # on_canceled
    return {end[:i] + end[i + 1 :] for end in ends for i in range(len(end) + 1)}


def _check_methods(cls: type, argument: str, *names: str) -> None:
    """Raise TypeError if a method of a subclass is misspelled or takes the wrong arguments."""
    written: _Values = {}
    for base in reversed(cls.__mro__):
        if base.__module__ != __name__:
            written.update(vars(base))
    for right in names:
        kind = Collection if right == "secret_fields" else FunctionType
        member = written.get(right)
        if isinstance(member, FunctionType) and not _takes(_signature(member), None, None):
            raise _mistake(TypeError, f"{cls.__qualname__}.{right} must take (self, {argument})")
        for name in written if right not in written and hasattr(cls, right) else ():
            is_slip = name[0] != "_" and _slips(name) & _slips(right)
            if is_slip and isinstance(written[name], kind):
                raise _mistake(TypeError, f"{cls.__qualname__}.{name} is not used: write {right}")


def _refuse_generator(what: str, function: Any) -> None:
    if any(map(inspect.isgeneratorfunction, (function, type(function).__call__))):
        raise _mistake(
            TypeError,
            f"{what} has a yield, but nothing would resume it: write a before hook and an after "
            "hook instead",
        )


def _handler_key(handler: object) -> object:
    """Return a dict key for a handler, even if the handler cannot be hashed."""
    try:
        hash(handler)
    except TypeError:
        return id(handler)
    return handler


class Executor:
    """Do part of a route's work before its handler runs. Each request gets a new instance.

    Write a subclass with a method `execute`. If `execute` may call `cancel`, also write a method
    `on_cancel`. Then pass the class to a route: `@app.post("/sign", Entry)`.
    """

    canceled = False
    """True once `cancel` has been called."""
    _canceled_status: int | None = None  # used unless `on_cancel` sets a status

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError if a method is misspelled or does not take the context."""
        super().__init_subclass__(**kwargs)
        _check_methods(cls, "context", "execute", "on_cancel", "validate", "secret_fields")

    def execute(self, context: WebContext) -> object:
        """Do the work. Override this method in your subclass.

        If it answers the request, the route ends: later executors and the handler do not run. See
        `Scope.before` for how to answer. If it has called `cancel`, the request is answered by
        `on_cancel` instead, whatever has been built.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must have a method execute(context)")

    def cancel(self) -> None:
        """Skip the later executors and the handler.

        Once `execute` has returned, `on_cancel` answers the request.
        """
        self.canceled = True

    def on_cancel(self, context: WebContext) -> object:
        """Answer a request that `execute` has canceled. You write this method.

        If this method does not build, send or return anything, the value that `execute` returned
        is sent.
        """


def _without(value: Any, names: Collection[str]) -> Any:
    """Copy a JSON value, leaving out the members with these names; case is ignored."""
    if isinstance(value, dict):
        return {
            name: _without(member, names)
            for name, member in value.items()
            if name.casefold() not in names
        }
    return [_without(item, names) for item in value] if isinstance(value, list) else value


class ValidationExecutor(Executor):
    """Check the input of a request before the handler runs.

    Write a subclass with a method `validate`, which calls `add_error` for each mistake. If there
    are errors when `validate` returns, the handler does not run, and the client gets a 422 response
    with the errors in JSON. No error hook runs in this case. Override `on_cancel` to change the
    body or the status.

    If `validate` builds a page without adding an error, that page is sent and the handler does not
    run. If `validate` raises an exception, the error hooks run as usual.

    Set `secret_fields` to the names of fields that the 422 response must not repeat, such as
    `"password"` or `("password", "again")`. Such fields are left out regardless of case, and at any
    depth of a JSON document.
    """

    secret_fields: Collection[str] = ()
    """The fields that the 422 response does not repeat: a name, or a tuple of names."""
    _canceled_status = 422

    @functools.cached_property
    def _errors(self) -> dict[str, tuple[str, ...]]:
        return {}  # created on demand, because a subclass's __init__ might not call super()

    @property
    def errors(self) -> Mapping[str, tuple[str, ...]]:
        """The messages added so far, by field.

        The mapping is read-only: use `add_error`, which also cancels the request.
        """
        return MappingProxyType(self._errors)

    def add_error(self, field: str, message: str) -> None:
        """Add a message about an input field.

        Raise TypeError unless both arguments are str. This prevents an exception from being
        sent as a message, with its stack trace.
        """
        _check_text("the field of add_error()", field)
        _check_text(f"the message of add_error({_value(field)})", message, ": write str(message)")
        self._errors[field] = (*self._errors.get(field, ()), message)
        self.cancel()

    def add_errors(self, errors: Mapping[str, str | Iterable[str]]) -> None:
        """Add the messages in `errors`, which maps each field to one or more messages."""
        for field, messages in errors.items():
            if isinstance(messages, str):
                messages = [messages]
            for message in messages:
                self.add_error(field, message)

    def validate(self, context: WebContext) -> object:
        """Call `add_error` for each mistake in the input, and return None.

        You write this method.
        """
        raise NotImplementedError(f"{type(self).__qualname__} must have a method validate(context)")

    def execute(self, context: WebContext) -> object:
        """Run `validate`; raise TypeError if it returns a value without having added an error."""
        value = self.validate(context)
        if not self.canceled and value is not None and value is not context.response:
            context.response._close_later(value)  # the value may be a stream
            raise TypeError(
                f"{_name(type(self).validate)} returned {type(value).__name__}: pass mistakes to "
                "add_error(field, message) or add_errors(mapping), and return None"
            )
        return value

    def on_cancel(self, context: WebContext) -> object:
        """Answer the request with 422 and a JSON object.

        The object contains all input as the client sent it, so that a form can be filled in again.
        Its member `validation` contains the errors. The `secret_fields` are left out, and so is
        input that cannot be read. If `validate` has sent a response, this method does nothing.
        """
        if not context.response.sent:
            # HttpException is raised for input that cannot be read, and RuntimeError if the body
            # has already been read in another way.
            given = context.request._all_input(HttpException, RuntimeError)
            secrets = self.secret_fields
            names = [secrets] if isinstance(secrets, str) else secrets
            shown = _without(given, {name.casefold() for name in names})
            context.response.put_form(shown).json("validation", self.errors).code(422)
        return None


def _run_executor(factory: _Callback, context: WebContext) -> object:
    """Make an executor and run it.

    If it cancels the request, send the response from `on_cancel` or, if there is none, the value
    that `execute` returned.
    """
    executor = factory()
    if not isinstance(executor, Executor):
        raise TypeError(
            f"the factory {_place(factory)} returned {_name(type(executor))}, not an Executor: if "
            "this is meant to be a handler, it must take (context)"
        )
    value = executor.execute(context)
    if not executor.canceled:
        return value
    response = context.response
    reason = "canceled the rest"
    if isinstance(executor, ValidationExecutor):
        reason = f"found errors in {', '.join(executor.errors)}"
    reason = _printable(f"{_name(type(executor))} {reason}")
    _observer(context.request.environ).explain(reason)
    if response._state == _REDIRECTED:
        if value is not None and value is not response:
            response._send(value, type(executor))  # raises RuntimeError
        response._state = _OPEN  # because `on_cancel` may replace the redirect
    if executor._canceled_status and not response.sent:
        response.code(executor._canceled_status)
    state, body = response._state, response._body
    answer = executor.on_cancel(context)
    if answer is not None or response._state != state or response._body is not body:
        response._close_later(value)  # it may be a stream that will never be sent
    else:
        answer = value
    if not response._send_if_answered(answer, type(executor).on_cancel):
        response._send()
    return response


def _make_call(executor: Any, names: Sequence[str], decorated: bool = False) -> _Call:
    """Return a callable that runs an executor of a route with the parameters `names`.

    A decorated function is a handler. Any other function is a factory if it can be called without
    arguments.
    """
    if isinstance(executor, Executor):
        raise _mistake(
            TypeError,
            f"an instance of {type(executor).__qualname__} would be shared by all requests: pass "
            "the class, or a function that makes an instance",
        )
    is_class = isinstance(executor, type)
    if not callable(executor) or (is_class and not issubclass(executor, Executor)):
        raise _mistake(
            TypeError,
            f"{_value(executor)} is not an executor: pass an Executor class, factory or handler",
        )
    _signature(executor)  # raises an exception for async functions
    signature = _signatures(executor)[0]
    # A function that takes `*args` is probably a handler with a decorator that does not use
    # functools.wraps.
    takes_any = inspect.Parameter.VAR_POSITIONAL in _open_ends(signature)
    if not is_class and (decorated or takes_any or not _takes(signature)):
        return _handler_call(executor, names)
    if not _takes(signature):
        raise _mistake(
            TypeError, f"{_name(executor)}() needs arguments: pass a function that supplies them"
        )
    return update_wrapper(partial(_run_executor, executor), executor, updated=())


def _handler_call(handler: _Call, names: Sequence[str]) -> _Call:
    """Return a function that calls a handler with the context.

    The handler takes the context, either alone or with the pattern's parameters, which may be named
    individually or collected in `**names`. Any other parameters must have a default and no
    annotation, as in `lambda context, n=n: ...`. Raise TypeError for anything else.
    """
    own = _signature(handler)
    for p in list(own.parameters.values())[1:]:
        if p.name not in names and p.empty not in (p.default, p.annotation):
            convert = getattr(p.annotation, "__name__", p.annotation)
            raise _mistake(
                TypeError,
                f"the handler {_name(handler)}: the pattern has no parameter {p.name}; write "
                f"context.request.query.parse({p.name!r}, {convert}, default={_value(p.default)})",
            )
    by_position = lambda context: handler(context, *context._values)  # noqa: E731
    by_name = lambda context: handler(context, **context.params)  # noqa: E731
    for signature in _signatures(handler):
        # The wrapper that a decorator returns has to accept the arguments of the original function.
        takes, own_takes = partial(_takes, signature), partial(_takes, own)
        kinds = _open_ends(signature)
        parameters = list(signature.parameters.values())
        others = [p.name for p in parameters[1:] if p.kind not in kinds]
        # `*values` has no names to compare, and `**values` has no order.
        has_no_order = not others and inspect.Parameter.VAR_KEYWORD not in kinds
        in_order = has_no_order or others[: len(names)] == list(names)
        if names and in_order and takes(None, *names) and own_takes(None, *names):
            return update_wrapper(by_position, handler, updated=())
        named = dict.fromkeys(names)
        if names and takes(None, **named) and own_takes(None, **named):
            return update_wrapper(by_name, handler, updated=())
        # The author of `def hello(name)` for /hello/{name} has forgotten the context.
        taken = {p.name for p in parameters if p.kind not in kinds}
        if takes(None) and own_takes(None) and not taken & set(names) - {"context"}:
            return handler
    expected = f"(context) or (context, {', '.join(names)})" if names else "(context)"
    raise _mistake(TypeError, f"the handler {_name(handler)} must take {expected}")


# ---- the context -------------------------------------------------------------
#
# What is passed to an application's functions? Each handler, executor and hook gets the context of
# the request as its first argument.
#
#     context.request.query["page"]     context.response.code(201)     context.state["user"]
#
# Only an open stream or file keeps a reference to the context, so the context is freed as soon as
# the request is over.


class WebContext:
    """Hold everything that belongs to a single request.

    Every handler, executor and hook gets the context as its first argument. Each request has a new
    context.

    - `app`: the `WebApp`.
    - `request`, `response`: the `Request` and the `Response`.
    - `route`: the `Route` that matched, or None for an unknown path or method.
    - `state`: a dict for your own values, which is empty at the start of each request.
    """

    __slots__ = (
        "app",
        "request",
        "response",
        "route",
        "state",
        "_chain",  # the route's calls and those from add_executor; None when no more can be added
        "_hooks",  # the hooks that run for the request; empty if on_request has sent a response
        "_miss",  # the exception for a request without a route
        "_values",  # the values of the path parameters, in the order of the pattern
    )

    app: WebApp
    """The application that answers the request."""
    request: Request
    """What the client sent."""
    response: Response
    """What the client will get."""
    route: Route | None
    """The route that matched, or None."""
    state: dict[Any, Any]
    """A dict for your own values, which is empty at the start of each request."""
    _chain: list[_Call] | None

    def __init__(
        self,
        app: WebApp,
        environ: _Environ,
        route: Route | None,
        values: Sequence[Any],
        miss: HttpException | None = None,
    ) -> None:
        self.app = app
        self.request = Request(app, environ)
        self.response = Response(self.request)
        self.route = route
        self._values = values
        self._hooks = app._hooks if route is None else route._hooks
        self._chain = [] if route is None else [*route._calls]
        self._miss: Any = miss
        self.state = {}

    @property
    def params(self) -> dict[str, Any]:
        """The path parameters by name; each value is a str, or an int for `{name:int}`.

        The dict is empty if no route matched.
        """
        return {} if self.route is None else dict(zip(self.route._names, self._values))

    @property
    def session(self) -> dict[str, Any]:
        """A dict of values for this visitor, kept between requests in a signed cookie.

        Visitors can read their session, but cannot change it. If the cookie is missing, forged or
        older than `session_max_age`, the session is empty. If there are several cookies with this
        name, up to eight are tried.

        If the session has changed, it is saved when the response is sent. If it has become empty,
        its cookie is deleted. If something fails before the response is sent, all changes are
        discarded, including those of `before` hooks.

        Reading the session raises RuntimeError if the application has no `secret_key`. Saving it
        raises TypeError for anything that would not come back unchanged, such as a date, a set, or
        a key that is not a str. (A tuple is allowed, and comes back as a list.) Saving raises
        ValueError if the cookie would be larger than 4,096 bytes, or if `session_cookie` is a name
        such as `__Host-name` and the request was made over plain HTTP.

        Once the response has been sent, for example in an `after` hook, the session is a read-only
        mapping. Changing it then raises TypeError, because it is too late to save the change in a
        cookie. From then on, changes to a list or dict inside the session, or to a session object
        that you got earlier, are silently lost.
        """
        response = self.response
        if response._session is None:
            response._session = self.app._open_session(self.request)
        values = response._session.values
        if response.sent:
            return cast(_Values, MappingProxyType(values))
        return values

    def add_executor(self, executor: Executor | type[Executor] | Callable[..., object]) -> None:
        """Add an executor to the end of the route's chain, after the handler.

        Pass an instance, or anything that you can pass to a route. The executor runs only if
        nothing before it (including the handler) has answered or canceled the request. Raise
        RuntimeError if the chain has already run, or if the request has already failed.
        """
        if self._chain is None or self.response.sent:
            raise RuntimeError("add_executor() was called too late: the route's executors have run")
        self._chain.append(
            partial(_run_executor, lambda: executor)
            if isinstance(executor, Executor)
            else _make_call(executor, list(self.params))
        )

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call `callback()` at the end of the request.

        A request whose response is a stream or a file ends when the body is closed. Any other
        request ends just before the server writes the response. If a callback raises an exception,
        the exception is logged, and the other callbacks still run. A KeyboardInterrupt or
        SystemExit is raised after all callbacks have run.
        """
        self.request._closing.append(callback)

    def url(self, handler: object, /, **params: object) -> str:
        """Return the path of a handler's route: `context.url(show_user, id=7)`.

        - `handler`: the handler function of a route, or the result of `Scope.static`.
        - `params`: the parameters in the route's pattern. Other parameters become the query
          string, in which a list or iterator becomes one field for each of its items. Parameters
          and items that are None are left out.

        The path begins with SCRIPT_NAME, and ends with a slash if the pattern does. If `params` are
        sufficient for several of the handler's routes, the one in the nearest scope around the
        current route is chosen. If several are equally near, the route with the most parameters is
        chosen. If that is still a tie, the route that was declared first is chosen.

        Raise LookupError if the handler has no route with these parameters, and ValueError for a
        value that does not match the pattern.
        """
        script_name = _as_path(_named_segments(self.request.environ.get("SCRIPT_NAME", "")))
        routes = self.app._routes_of.get(_handler_key(handler))
        if not routes:
            raise LookupError(
                f"no route has the handler {_value(handler)}: pass a route's handler to url()"
            )
        # Leave out parameters that are None.
        params = {name: value for name, value in params.items() if value is not None}
        fitting = [route for route in routes if params.keys() >= set(route._names)]
        if not fitting:
            patterns = " or ".join(route.pattern for route in routes)
            raise LookupError(
                f"{patterns} needs more values than were given: {', '.join(params) or 'none'}"
            )
        near = set() if self.route is None else self.route.scope._around

        def rank(route: Route) -> tuple[int, int, int]:
            around = route.scope._around
            return len(near & around), -len(around), len(route._names)

        route = max(fitting, key=rank)
        path = quote(script_name, _PATH_SAFE, "latin-1") + route._write(params)
        query = [
            (name, item)
            for name, value in params.items()
            if name not in route._names
            for item in (cast("Iterable[object]", value) if _is_listed(value) else (value,))
            if item is not None
        ]
        return f"{path}?{urlencode(query, errors='replace')}" if query else path


# ---- patterns and routes -----------------------------------------------------
#
# Which route matches a path and a method? Patterns are kept in a tree with a node for each segment:
# "/users/{id:int}" is the node "users", followed by a node for an integer.
#
#     router.match(["users", "7"], "GET")   the Route of /users/{id:int}, its values [7], no methods
#     router.match(["users", "7"], "PUT")   None, no values, the methods for the path: GET, HEAD
#
# In this section, paths and methods are of type str.


class Route:
    """Describe a route. You get routes from `WebApp.routes()` and as `context.route`.

    - `method`: the method, or `*` for a mounted application, which gets requests with any method.
    - `pattern`: the whole pattern, with the prefixes of the scopes around it.
    - `scope`: the `Scope` in which the route was declared.
    - `handlers`: the executors as you passed them to the route, followed by the decorated handler.
    """

    _hooks: _Hooks  # the hooks of the scopes around the route; set at the first request
    _mounted: WebApp | None  # the mounted WebApp that the handler calls

    def __init__(
        self, method: str, pattern: str, segments: _TextPairs, scope: Scope, gives_way: bool
    ) -> None:
        self.method = method
        self.pattern = pattern
        self.scope = scope
        self.handlers: list[Any] = []
        # True if a route with the same method and shape may replace this route. If neither route
        # may be replaced, declaring both raises ValueError.
        self._gives_way = gives_way
        self._segments = segments
        self._names = [text for kind, text in segments if kind != _LITERAL]  # parameter names
        # A percent-encoded template for the path.
        self._template = _as_path(
            quote(text, _PATH_SAFE, errors="replace") if kind == _LITERAL else f"{{{text}}}"
            for kind, text in segments
        )
        if pattern[-1] == "/":
            self._template += "/"
        self._calls: list[_Call] = []  # the functions that the dispatcher calls, one per handler
        self._place = _here()  # where the application declares the route

    def __repr__(self) -> str:
        return f"<Route {self.method} {self.pattern} at {self._place}>"

    def _write(self, params: Mapping[str, object]) -> str:
        """Return the path for these `params`; raise ValueError if they do not match the pattern."""
        values = {}
        for kind, name in self._segments:
            if kind != _LITERAL:
                value = str(params[name])
                segments = value.split("/") if kind == _REST else [value]
                # Browsers remove segments of one or two dots, however they are encoded.
                if {"", ".", ".."}.intersection(segments) or (
                    kind == _INT and not _INTEGER.fullmatch(value)
                ):
                    raise ValueError(f"{_value(params[name])} does not fit the parameter {name!r}")
                safe = _PATH_SAFE if kind == _REST else _PATH_SAFE[1:]
                values[name] = quote(value, safe, errors="replace")
        return self._template.format_map(values)


# A pattern is a list of segments. Each segment is either a literal or a parameter.
_SEGMENT = re.compile(r"\{([^{}:]*)(?::(int|path))?\}")
# This matches parameters in the notation of other frameworks, and stray braces.
_MISWRITTEN = re.compile(r"[{}]|<.+>|^:[^\W\d]\w*$|^\*+$")
_INTEGER = re.compile(r"[0-9]{1,18}")  # fits into 64 bits, like a database key
# A pattern must not contain any of these. They include the `^` and `$` of regular expressions (but
# /$metadata is allowed), and spaces at either end of a pattern.
_NO_PATH = re.compile(r"[?#\\]|://|^\^|\$\Z|%[0-9A-Fa-f]{2}|^\s|\s\Z")
_LITERAL, _INT, _NAME, _REST = "literal", "int", "name", "path"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _parse_pattern(pattern: str) -> _TextPairs:
    """Split a pattern into a (kind, text) pair for each segment.

    Raise ValueError if the pattern is malformed.
    """
    segments: _TextPairs = []
    mistake = ""
    for text in _named_segments(pattern):
        match = _SEGMENT.fullmatch(text)
        if match and match[1].isidentifier():
            segments.append((match[2] or _NAME, match[1]))
        else:
            segments.append((_LITERAL, text))
            if _MISWRITTEN.search(text):
                wanted = "{name:path}" if text[0] == "*" else "{name}"
                mistake = (
                    f"write {wanted} for a parameter, not {text}; "
                    "there are also {name:int} and {name:path}"
                )
    names = [text for kind, text in segments if kind != _LITERAL]
    if found := _NO_PATH.search(pattern):
        mistake = (
            f"a pattern cannot contain {found[0]!r}, and its characters are not percent-encoded; "
            "for a query, use context.request.query"
        )
    elif any(kind == _REST for kind, _ in segments[:-1]):
        mistake = "a path parameter must come last"
    elif len(names) != len(set(names)):
        mistake = "two parameters have the same name"
    if mistake:
        raise _mistake(ValueError, f"{pattern!r}: {mistake}")
    return segments


def _is_method(method: object) -> bool:
    """Tell whether a route may have this method.

    The method must be a token (RFC 9110 section 9.1), and standard methods must be in capitals.
    """
    if not isinstance(method, str) or method == "*" or not _TOKEN.fullmatch(method):
        return False
    usual = method.upper()
    return method == usual or usual not in (*_METHODS, "CONNECT", "TRACE")


def _shape(segments: _TextPairs) -> _TextPairs:
    """Return a pattern without the names of its parameters."""
    return [(kind, text if kind == _LITERAL else "") for kind, text in segments]


class _Node:
    def __init__(self) -> None:
        # The child nodes, by literal segment or by kind of parameter.
        self.literals: dict[str, _Node] = {}
        self.parameters: dict[str, _Node] = {}
        # The routes of the patterns that end at this node, by method. HEAD falls back to the route
        # for GET.
        self.routes: dict[str, Route] = {}


class _Router:
    def __init__(self) -> None:
        self._root = _Node()
        # The nodes that can be reached through literals alone. The keys are paths in the form that
        # a server puts into PATH_INFO, with and without a trailing slash.
        self._literals = {"/": self._root}

    def add(self, routes: Sequence[Route], segments: Iterable[_TextPair]) -> None:
        """Add the routes of a pattern. If a method already has a route, raise ValueError.

        In that case, no route is added.
        """
        node, path = self._root, ""
        behind_literals = True
        for kind, text in segments:
            if kind == _LITERAL:
                node = node.literals.setdefault(text, _Node())
            else:
                node = node.parameters.setdefault(kind, _Node())
                behind_literals = False
            if behind_literals:
                path += "/" + text.encode().decode("latin-1")
                self._literals[path] = node
                self._literals[path + "/"] = node
        found = dict(node.routes)
        for route in routes:
            other = found.get(route.method)
            # A route for GET answers HEAD until there is a route for HEAD.
            if other is None or other._gives_way or other.method != route.method:
                found[route.method] = route
            elif not route._gives_way:
                raise ValueError(
                    f"{route!r} is the same route as {other!r}: "
                    "remove one of them, or change its pattern or method"
                )
            head = found.get("HEAD")
            if route.method == "GET" and (head is None or head.method == "GET"):
                found["HEAD"] = found["GET"]
        node.routes = found

    def look_up(self, path: str, method: str) -> tuple[Route | None, Sequence[Any]]:
        """Return what `match` would find for a path of literals, with or without a final `{name}`.

        Return None as the route if the full search in `match` is needed.
        """
        node = self._literals.get(path)
        if node is not None:
            return node.routes.get(method), ()
        # `head + slash` is the path up to and including its last slash. For "//a" this is "//",
        # which does not lead to the root, because it is not one of the keys.
        head, slash, tail = path.rpartition("/")
        node = self._literals.get(head + slash)
        if node is None or _INT in node.parameters or not tail.isascii():
            return None, ()
        behind = node.parameters.get(_NAME)
        return (None, ()) if behind is None else (behind.routes.get(method), (tail,))

    # Which route wins? At each segment, a literal is preferred to an int, an int to a name, and a
    # name to the rest of the path. If the best choice leads nowhere, or only to patterns without
    # the method, the search tries the next one. This is why OPTIONS /{rest:path} can answer every
    # preflight request. The search visits each node at most once.

    def match(
        self, segments: Sequence[str], method: str
    ) -> tuple[Route | None, Sequence[Any], Sequence[str]]:
        """Return the best route and the values of its parameters.

        If no route matches, return None, () and the methods for which the path has routes.
        """
        size = len(segments)
        methods: list[str] = []
        nothing: list[Any] = []
        waiting = [(self._root, 0, nothing)]  # choices not tried yet: node, depth, values
        while waiting:
            node, depth, values = waiting.pop()
            if depth == size:
                route = node.routes.get(method) or node.routes.get("*")
                if route is not None:
                    return route, values, methods
                methods += node.routes
                continue
            segment, behind = segments[depth], node.parameters
            # The weakest choice is added first, because the choice added last is tried first.
            if _REST in behind:
                waiting.append((behind[_REST], size, [*values, "/".join(segments[depth:])]))
            if _NAME in behind:
                waiting.append((behind[_NAME], depth + 1, [*values, segment]))
            if _INT in behind and _INTEGER.fullmatch(segment):
                waiting.append((behind[_INT], depth + 1, [*values, int(segment)]))
            if segment in node.literals:
                waiting.append((node.literals[segment], depth + 1, values))
        return None, (), methods


# ---- the server's side of WSGI -----------------------------------------------
#
# How can a WSGI application be called without a socket? A `_Gateway` gives the application a
# start_response function and passes on the blocks of its body. Mounts and the test client use a
# gateway.
#
#     gateway = _Gateway()
#     result = application(environ, gateway.start_response)
#     b"".join(gateway.blocks(result, "GET")), gateway.status, gateway.headers


class _Gateway:
    """One call of a WSGI application: the server's side of PEP 3333."""

    # The head is sent with the first byte of the body, and cannot be replaced after that.
    headers_sent = False
    status = ""  # empty until start_response is called

    def __init__(self) -> None:
        self.headers: _TextPairs = []
        self._written: list[bytes] = []

    def start_response(self, status: str, headers: _TextPairs, exc_info: Any = None) -> Any:
        try:
            if exc_info is not None and self.headers_sent:
                raise exc_info[1].with_traceback(exc_info[2])
            if exc_info is None and self.status:
                raise RuntimeError("the application called start_response again without exc_info")
        finally:
            exc_info = None  # it refers to this frame, and the cycle would keep both in memory
        self.status = status
        self.headers = headers
        return self.write

    def write(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError(f"a WSGI response must consist of bytes, not {type(data).__name__}")
        if data:
            self.headers_sent = True
        self._written.append(data)

    def blocks(self, result: Iterable[bytes], method: str) -> Iterator[bytes]:
        """Yield the blocks that were passed to write() and the blocks of `result`.

        Empty blocks are left out. The caller has to close `result`. Raise RuntimeError if
        start_response was not called before the body, or if the body is not as long as its
        Content-Length.
        """
        sent, announced = 0, None  # bytes
        for chunk in itertools.chain(result, (b"",)):  # so that an empty body is checked, too
            if not self.status:
                raise RuntimeError("the application did not call start_response before its body")
            has_body = method != "HEAD" and int(self.status[:3]) not in _BODILESS
            length = Headers(self.headers).get("Content-Length", "")
            announced = int(length) if has_body and _CONTENT_LENGTH.fullmatch(length) else None
            self.write(chunk)
            written, self._written = self._written, []
            for block in filter(None, written):
                sent += len(block)
                if announced is not None and sent > announced:
                    # PEP 3333: a file is sent only up to its Content-Length.
                    if isinstance(result, FileWrapper):
                        yield from filter(None, [block[: announced - sent]])
                        return
                    raise RuntimeError(
                        f"the response announced {announced} bytes but has {sent}: a server would "
                        "refuse it"
                    )
                yield block
        if announced is not None and sent < announced:
            raise RuntimeError(
                f"the response announced {announced} bytes but has {sent}: a server would close "
                "the connection"
            )


class _BodyStream(io.RawIOBase):
    """Make a body look like the raw file that io.BufferedReader needs."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._body.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _BodyFile(io.BufferedReader):
    """Make a body look like a buffered binary file.

    If a call asks for more than _PIECE bytes, the observer counts the returned bytes until the next
    such call, because nothing shows how long the application keeps them in memory.
    """

    _kept = 0  # how many bytes the last counted call returned

    def __init__(self, body: Any, observer: _Observer) -> None:
        super().__init__(_BodyStream(body), _PIECE)
        self._observer = observer

    def read(self, size: int | None = -1, /) -> bytes:
        return self._gather(super().read, size, b"")

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._gather(super().readline, size, b"\n")

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Return a list of lines. Without `hint`, the list contains all lines."""
        if hint is not None and hint > 0:
            return super().readlines(hint)
        return BytesIO(self.read()).readlines()

    def _gather(self, read: _ReadFunction, size: int | None, last: bytes) -> bytes:
        """Read up to `size` bytes, or until a piece ends with `last`."""
        left = sys.maxsize if size is None or size < 0 else size
        if left <= _PIECE:
            return read(left)
        self._observer.give_back_body(self._kept)
        self._kept = 0
        gathered = BytesIO()
        while left:
            asked = self._observer.keep_body(min(left, _PIECE))
            piece = read(asked)
            self._observer.give_back_body(asked - len(piece))
            self._kept += len(piece)
            left -= len(piece)
            gathered.write(piece)
            if len(piece) < asked or (last and piece.endswith(last)):
                break
        return gathered.getvalue()


_MAX_SPOOLED = 2**30
_spooling = threading.Lock()


class _Observer:
    """A server or test client to which the application reports more than PEP 3333 requires.

    The application finds this observer as `environ["webapp.server"]`. This is the only key that
    this file adds to an environ, and any server may leave it out. The application calls these
    methods:

        explain(reason)       gives the reason for the status of the response, in one printable
                              line. The reason is for an access log, and is never sent to a client.
        begin_stream(type)    announces a stream with this Content-Type before its first chunk is
                              made. To refuse the stream, the observer raises an HttpException.
        keep_body(size)       reports that `size` more bytes of the request body will be in memory
                              until the request ends, and returns how many of them may be read now.
                              To refuse these bytes, the observer raises an HttpException.
        give_back_body(size)  reports that `size` of these bytes are no longer in memory, or were
                              not read after all.
        count_spooled(size, files)  reports that another `size` bytes of the request body are being
                              written to disk, and that `files` more temporary files are in use.
                              Negative numbers report that bytes or files have been deleted. To
                              refuse more bytes, the observer raises an HttpException.
        note_unanswered(error)  reports that no error hook has handled `error`.
        has_noted(error)      asks whether `error` has already been reported to the observer.

    If the server provides no observer, each call to `_observer` returns a new object of this class,
    which is not kept.
    """

    spooled = 0  # bytes in the temporary files of this process, unless the server counts them
    reason = ""  # explains the status of the response
    errors: tuple[BaseException, ...] = ()  # the errors that no error hook has handled

    def explain(self, reason: str) -> None:
        self.reason = reason

    def begin_stream(self, content_type: str) -> None: ...

    def keep_body(self, size: int) -> int:
        return size

    def give_back_body(self, size: int) -> None: ...

    def count_spooled(self, size: int, files: int = 0) -> None:
        with _spooling:
            _Observer.spooled += size
        if size > 0 and _Observer.spooled > _MAX_SPOOLED:
            raise _Overloaded("request bodies take up too much space in temporary files")

    def note_unanswered(self, error: BaseException) -> None:
        self.errors += (error,)

    def has_noted(self, error: BaseException) -> bool:
        return any(error is noted for noted in self.errors)


def _observer(environ: _Environ) -> _Observer:
    observer: _Observer = environ.get("webapp.server") or _Observer()
    return observer


def _spool_body(environ: _Environ) -> ExitStack:
    """Read a whole chunked body into a file. The caller has to close the returned object.

    The file becomes the input of `environ`. Its size becomes CONTENT_LENGTH, which replaces
    Transfer-Encoding (RFC 9112 section 7.1.3), because many applications ignore a body without a
    length. Raise HttpException if the body is malformed, and HttpException 503 if the disk is full
    or if all temporary files together exceed their limit.
    """
    observer = _observer(environ)
    source = _BodyInput(environ["wsgi.input"], None, sys.maxsize, observer)
    # Two of these halves of a body may be in memory at a time: one here and one in the file.
    half = _PIECE // 2
    pieces = itertools.chain([b""], iter(partial(source.read, half), b""))
    try:
        with ExitStack() as opened:
            file, size = _spool(pieces, opened, observer, in_memory=half)
            kept = opened.pop_all()
    except OSError as error:
        raise _Overloaded("a body could not be spooled") from error
    del environ["HTTP_TRANSFER_ENCODING"]
    environ["CONTENT_LENGTH"] = str(size)
    environ["wsgi.input"] = _BodyFile(file, observer)
    return kept


# ---- files and mounts --------------------------------------------------------
#
# Which handlers does this file provide? The handler of `static` serves the files below a directory,
# and the handler of `mount` passes requests to another WSGI application.
#
#     app.static("/s", "public")   GET /s/a.txt   the file public/a.txt, as `Response.file` sends it
#     app.mount("/m", other)       GET /m/x       other(...), SCRIPT_NAME is "/m", PATH_INFO is "/x"
#
# A file system may know a file by names that the router does not know: in upper or lower case, in a
# different form of Unicode, by a short name, or by a link. So the real name of an opened file must
# follow the rules for names, and the router must find the same route for the real name. The router
# must also find the same route for the path that a mounted application gets. Otherwise, the request
# is answered with 404, because the hooks of the other route have not run. On a first reading, you
# can skip `_why_not_wsgi`.


def _check_route(context: WebContext, handler: _Call, segments: list[str]) -> None:
    """Raise NotFoundException if the router does not find `handler` for these segments."""
    found = context.app._router.match(segments, context.request.method)[0]
    if found is None or handler not in found.handlers:
        raise NotFoundException(f"this path belongs to another route: {_as_path(segments)!r}")


def _refuse_dots(segments: Iterable[str]) -> None:
    """Raise NotFoundException for dot segments (even after an encoded slash) and for a NUL."""
    names = _named_segments("/".join(segments))
    if {".", ".."}.intersection(names) or "\0" in "".join(names):
        raise NotFoundException(f"the path contains dot segments or a NUL: {names!r}")


def _serve_files(scope: Scope, prefix: str, directory: str | os.PathLike[str]) -> _Call:
    # Links are followed again for each request, because a link may now point to a new release.
    root = os.path.join(os.getcwd(), os.fsdecode(directory))
    depth = len(scope._full_pattern(prefix)[0])
    if not isdir(root):
        raise _mistake(
            ValueError, f"static({prefix!r}, {_value(directory)}): there is no directory {root!r}"
        )
    place = _here()
    source = realpath(place.rpartition(":")[0])
    below = _names_below(root, source) if isfile(source) else []
    if below and _are_served(below):
        _report(
            None,
            logging.WARNING,
            f"static({prefix!r}, {_value(directory)}) also serves your {'/'.join(below)}: pass a "
            f"folder without your source code ({place})",
        )

    def serve_file(context: WebContext) -> Response:
        segments = _path_segments(context.request.environ)
        above, names = segments[:depth], segments[depth:]
        _refuse_dots(above)  # the prefix may contain parameters
        is_folder = _are_served(names) and isdir(os.path.join(root, *names))
        if is_folder:
            names.append("index.html")
        file, real = _open_below(root, names)
        # The file is closed at the end of the request, even if the next check fails.
        response = context.response._build_file(file)
        if above + real != segments:
            _check_route(context, serve_file, above + real)
        if is_folder:
            path, mark, query = context.request.url.partition("?")
            if not path.endswith("/"):
                # The links in the page are relative to a path that ends with a slash. The redirect
                # is relative, so that it cannot name a host.
                response.redirect(f"./{path.rpartition('/')[2]}/{mark}{query}", 301)
        return response

    serve_file.__qualname__ = f"static({_value(root)})"  # for messages and for --routes
    # If the application declares a route for the directory itself, that route is used instead of
    # the file index.html.
    scope._register(("GET",), prefix, (serve_file,), gives_way=True)
    scope.get(prefix + "/{path:path}", serve_file)
    return serve_file


def _why_not_wsgi(app: object) -> str:
    """Return the reason why `app` is not a WSGI application, or "" if it may be one."""
    name = _value(app)
    if not callable(app):
        return f"{name} is not a WSGI application"
    if isinstance(app, MethodType) and (app.__module__, app.__name__) == (__name__, "run"):
        return f"{name} serves until the server stops: pass the application itself"
    try:
        signature = _signature(app)
    except TypeError:
        return f"{name} is async: it is an ASGI application, not a WSGI application"
    is_ours = isinstance(app, type) and _is_ours(app)
    if _takes(signature, None, None) and not is_ours:
        return ""
    if isinstance(app, type) or _takes(signature):
        return f"{name} makes an application: write application = {name}(), and pass application"
    return f"{name} does not take (environ, start_response), as a WSGI application must"


def _mount(scope: Scope, prefix: str, wsgi_app: _WSGIApplication) -> None:
    mistake = _why_not_wsgi(wsgi_app)
    inner: Any = wsgi_app if _is_ours(type(wsgi_app)) else None
    if not mistake and inner is not None and scope._app in dict(inner._applications()):
        mistake = "an application cannot be mounted in itself"
    if mistake:
        raise _mistake(TypeError, f"mount(): {mistake}")
    depth = len(scope._full_pattern(prefix)[0])

    def run_mounted(context: WebContext) -> None:
        request, response, gateway = context.request, context.response, _Gateway()
        segments = _path_segments(request.environ)
        _refuse_dots(segments)
        names = _named_segments("/".join(segments))  # as the application sees them in PATH_INFO
        if names[:depth] != segments[:depth]:
            raise NotFoundException(f"the path has an encoded slash in its prefix: {segments!r}")
        _check_route(context, run_mounted, names)
        environ = _shifted(request.environ, depth)
        is_chunked = "HTTP_TRANSFER_ENCODING" in environ and environ.get("wsgi.input_terminated")
        if is_chunked and inner is None:
            request._closing.append(_spool_body(environ).close)
        result = wsgi_app(environ, gateway.start_response)
        response._close_later(result)
        body = gateway.blocks(result, request.method)
        first = next(body, b"")
        response.code(int(gateway.status[:3]))  # next(body) has checked that there is a status
        for name, value in gateway.headers:
            # Some old applications send a Connection field. This is harmless, so the field is
            # silently left out.
            if name.lower() not in _NOT_OURS:
                response._append_header(_check_header(name, value, ours=False))
        response.stream(itertools.chain((first,), body))

    run_mounted.__qualname__ = f"mount({_value(wsgi_app)})"
    for pattern in (prefix, prefix + "/{path:path}"):
        scope._register(("*",), pattern, (run_mounted,), mounted=inner)


def _shifted(environ: _Environ, depth: int) -> _Environ:
    """Return a copy of the environ, with `depth` segments moved from PATH_INFO to SCRIPT_NAME."""
    names, path = _named_segments(environ.get("SCRIPT_NAME", "")), environ.get("PATH_INFO", "")
    for _ in range(depth):
        name, slash, rest = path.lstrip("/").partition("/")
        names.append(name)
        path = slash + rest
    if not names:  # a link that begins with two slashes would name a host
        path = "/" + path.lstrip("/")
    return {**environ, "SCRIPT_NAME": _as_path(names), "PATH_INFO": path}


# ---- scopes ------------------------------------------------------------------
#
# Which hooks run for a route? The hooks of its scope run, and so do the hooks of the scopes around
# it. A scope is also called a block.
#
#     with app.path("/admin") as admin:    a scope inside the outermost scope, the application
#         admin.before(only_staff)         runs for /admin/users, but neither for /admin-guide
#                                          nor for the routes of a second path("/admin")
#         admin.get("/users", list_users)
#
# A mistake in a declaration raises an exception immediately. The message of this exception ends
# with the file and line of the declaration. The code in this section does not run any hooks.

_Handler = TypeVar("_Handler", bound=_Call)
_Hook = TypeVar("_Hook", bound="Callable[[WebContext], object]")
_ErrorHook = TypeVar("_ErrorHook", bound="Callable[[WebContext, Exception, int], object]")


class _Hooks:
    """Hold the hooks of a scope as declared, or those of a route in the order in which they run."""

    def __init__(
        self, before: Sequence[_Call] = (), after: Sequence[_Call] = (), error: Sequence[_Call] = ()
    ) -> None:
        self.before = before
        self.after = after
        self.error = error


_NO_HOOKS = _Hooks()


def _hooks_of(scope: Scope | None) -> _Hooks:
    """Return the hooks of a scope and of the scopes around it.

    Before hooks run from the outermost scope to the innermost. The other hooks run from the
    innermost scope to the outermost. Within a scope, hooks run in the order of their declaration.
    """
    if scope is None:
        return _NO_HOOKS
    outer, own = _hooks_of(scope._parent), scope._hooks
    return _Hooks(
        before=(*outer.before, *own.before),
        after=(*own.after, *outer.after),
        error=(*own.error, *outer.error),
    )


class _NoSuchName:
    """Raise AttributeError when a name from another framework is read, but let it be assigned."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, scope: object, owner: type) -> NoReturn:
        error = AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}")
        _explain_missing(error, scope)
        raise error


# This metaclass inherits from ABCMeta, so that an application can have an abstract base class.
class _HidesNames(abc.ABCMeta):
    """Hide certain names from dir(), help() and completion.

    Using such a name raises an exception that explains what to write instead.
    """

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name not in _KNOWN_ELSEWHERE["Scope"]]


class _Decorator(Protocol):
    """Add a handler to a route, and return the handler."""

    def __call__(self, handler: _Handler, /) -> _Handler: ...


class Scope(metaclass=_HidesNames):
    """Group routes, together with the hooks that apply to them.

    You get a scope from `path`. Its hooks apply to all of its routes, even to those declared
    earlier, and to the routes of the scopes inside it. Two calls to `path` make two scopes, even
    with the same prefix: the hooks of one do not apply to the routes of the other.

    A pattern consists of segments between slashes:

    - `books` matches only the segment `books`.
    - `{name:int}` matches up to 18 digits without a sign, and the handler gets an int.
    - `{name}` matches any single segment.
    - `{name:path}` matches one or more segments, as a single str. It must come last.

    Empty segments are ignored, so `/a`, `/a/` and `//a` are the same pattern.

    `get`, `post` and so on return a decorator for the handler. `executors` run before the handler.
    They are Executor subclasses, factories without arguments, or other handlers. A handler takes
    `(context)`, or `(context, ...)` with exactly the parameter names of the pattern. Once an
    executor or handler has answered the request, the remaining ones do not run (see `before`).

    Raise ValueError for a malformed pattern, and for a second route with the same method and the
    same pattern, even if its parameters have different names. Raise TypeError for a handler with
    the wrong arguments, and RuntimeError for any declaration after the first request.
    """

    def __init__(self, app: WebApp, parent: Scope | None, prefix: str) -> None:
        self._app = app
        self._parent = parent
        self._around: set[Scope] = {self} if parent is None else {self, *parent._around}
        self._prefix = prefix
        self._hooks = _Hooks([], [], [])
        self._is_empty = True  # until something is declared in it

    def __dir__(self) -> list[str]:
        return [*{*dir(type(self)), *vars(self)}]

    # Routes.

    def get(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for GET, which also answers HEAD."""
        return self._register(["GET"], pattern, executors)

    def post(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for POST."""
        return self._register(["POST"], pattern, executors)

    def put(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for PUT."""
        return self._register(["PUT"], pattern, executors)

    def patch(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for PATCH."""
        return self._register(["PATCH"], pattern, executors)

    def delete(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for DELETE."""
        return self._register(["DELETE"], pattern, executors)

    def head(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for HEAD, so that HEAD is not answered by the route for GET."""
        return self._register(["HEAD"], pattern, executors)

    def options(self, pattern: str, *executors: object) -> _Decorator:
        """Register a route for OPTIONS."""
        return self._register(["OPTIONS"], pattern, executors)

    def any(self, pattern: str, *executors: object) -> _Decorator:
        """Register routes for GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS."""
        return self._register(_METHODS, pattern, executors)

    def route(
        self,
        method: str | Sequence[str] = "",
        pattern: str | None = None,
        /,
        *executors: object,
        **named: NoReturn,
    ) -> _Decorator:
        """Register a route for the given method, or one for each method in the given list.

        Methods are case-sensitive. Raise ValueError if a method is not a token (RFC 9110 section
        9.1), or if a standard method is not in capitals. Also raise ValueError if the list is empty
        or contains a method twice.
        """
        methods: Sequence[Any] = method if isinstance(method, (list, tuple)) else [method]
        is_wrong = named or not methods or not all(map(_is_method, methods))
        if is_wrong or len({*methods}) < len(methods):
            raise _mistake(
                ValueError,
                f"route({_value(method)}): write route('GET', '/path') or route(['GET', 'POST'], "
                "'/path')",
            )
        return self._register(methods, pattern, executors)

    def _register(
        self,
        methods: Sequence[str],
        pattern: object,
        executors: Sequence[Any],
        *,
        gives_way: bool = False,
        mounted: WebApp | None = None,
    ) -> _Decorator:
        self._begin_declaration()
        segments, whole = self._full_pattern(pattern)
        self._check_open_blocks(segments, whole)
        routes = [Route(method, whole, segments, self, gives_way) for method in methods]

        def append(handler: _Handler, decorated: bool = True) -> _Handler:
            self._begin_declaration()
            call = _make_call(handler, routes[0]._names, decorated)
            for route in routes:
                route._calls.append(call)
                route.handlers.append(handler)
            self._app._routes_of.setdefault(_handler_key(handler), []).extend(routes)
            return handler

        for executor in executors:
            append(executor, decorated=False)
        for route in routes:
            route._mounted = mounted
        self._app._router.add(routes, segments)
        self._app._routes += routes
        return append

    def _begin_declaration(self) -> None:
        if self._app._sealed:
            raise _mistake(
                RuntimeError, "routes and hooks must be declared before the first request"
            )
        self._is_empty = False

    def _full_pattern(self, pattern: Any) -> tuple[_TextPairs, str]:
        """Return the segments and the text of a pattern, including the prefix of this scope."""
        if not isinstance(pattern, str):
            hint = '; a decorator needs one, such as @app.get("/hello")'
            raise _mistake(TypeError, f"a pattern must be a str, not {_value(pattern)}{hint}")
        _parse_pattern(pattern)  # the prefix may hide a mistake, as in "/api" + "http://..."
        whole = _as_path(_named_segments(f"{self._prefix}/{pattern}"))
        if not whole or pattern[-1:] == "/":
            whole += "/"
        return _parse_pattern(whole), whole

    def _check_open_blocks(self, segments: _TextPairs, whole: str) -> None:
        """Raise RuntimeError for a pattern that looks as if it was meant for an open scope."""
        shape = _shape(segments)
        for block in self._app._open_blocks:
            prefix = _shape(_parse_pattern(block._prefix))
            is_inside = block is not self and self in block._around
            if is_inside and shape[: len(prefix)] == prefix:
                raise _mistake(
                    RuntimeError,
                    f"{whole!r} is declared outside the open scope {block._prefix or '/'!r}, whose "
                    "hooks would not run for it: declare it with that scope, or move the line "
                    "above the `with`",
                )

    # Scopes inside this one.

    def path(self, prefix: str, block: Callable[[Scope], object] = _NOT_GIVEN) -> Scope:
        """Open a new scope inside this one: `with app.path("/admin") as admin:`.

        - `prefix`: a pattern without a `{name:path}`, or "".
        - `block`: a function that is called with the scope and declares its routes. You can pass
          this function instead of using `with`.

        Raise RuntimeError if nothing is declared in the scope. Until the new scope is closed, you
        cannot use an outer scope to declare a route that begins with the prefix of the new scope.
        Such a declaration raises RuntimeError, because you would expect the hooks of the new scope
        to run for the route.
        """
        self._begin_declaration()
        segments, whole = self._full_pattern(prefix)
        self._check_open_blocks(segments, whole)
        scope = Scope(self._app, self, whole)
        if block is not _NOT_GIVEN:
            with scope:
                block(scope)
        return scope

    if not TYPE_CHECKING:

        def __call__(self, handler: object) -> NoReturn:
            """Raise TypeError, because a scope is not a decorator."""
            raise _mistake(
                TypeError,
                f"path() makes a scope, not a decorator: for {_value(handler)} write "
                f"@app.get({self._prefix!r})",
            )

    def __enter__(self) -> Scope:
        self._app._open_blocks.append(self)
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        self._app._open_blocks.remove(self)
        if kind is None and self._is_empty:
            prefix = repr(self._prefix or "/")
            raise _mistake(
                RuntimeError,
                f"nothing was declared in the scope {prefix}: write `with app.path({prefix}) as "
                "scope:` and declare routes with @scope.get(...)",
            )

    # Hooks.

    def before(self, hook: _Hook) -> _Hook:
        """Attach `hook(context)`, which runs before the executors and the handler.

        Hooks of outer scopes run first. No before hook runs for an unknown path or method. A before
        hook can act as a guard: if it answers the request, the later before hooks, the executors
        and the handler do not run, but the `after` hooks do. A hook has answered the request if

        - it sent a response, returned a value, or set a status of 300 or more (as `redirect` does),
        - it built a whole body with `html`, `text`, `body`, `file`, `stream`, `events` or
          `json(document)`, even without returning it,
        - or it returned the response after building any body or setting a status.

        Setting headers, cookies or a status below 300, adding JSON members with `json(name, value)`
        and calling `put_form` do not count as answering. If a hook answers the request without
        `return`, the access line names the hook.

        Raise TypeError for a hook that takes the wrong arguments or contains a `yield`.
        """
        return self._attach("before", hook)

    def after(self, hook: _Hook) -> _Hook:
        """Attach `hook(context)`, which runs when the response has been sent, even after an error.

        Hooks of inner scopes run first. A hook may still set headers and cookies. If a hook raises
        an exception, the exception is logged, the hook's changes to the headers are undone, and the
        rest of the response stays as it is.
        """
        return self._attach("after", hook)

    @overload
    def error(  # type: ignore[overload-overlap]  # a class can be called
        self, cause: int | type[Exception], /, *causes: int | type[Exception]
    ) -> Callable[[_ErrorHook], _ErrorHook]: ...

    @overload
    def error(self, hook: _ErrorHook, /) -> _ErrorHook: ...

    def error(self, hook: Any, /, *causes: Any) -> Any:
        """Attach `hook(context, cause, status_code)`, which runs after an exception.

        Hooks of inner scopes run first. The status of the response is set before the hooks run. If
        a hook sends the response, or returns a value other than the response, no other error hook
        runs. If it only builds a body, the outer hooks still run, and the last body that was built
        is sent. If a hook raises an exception, the exception is logged, and everything that the
        hook did is undone.

        `error(404)`, `error(SoldOut)` and `error(404, 405, SoldOut)` return a decorator for a hook
        that runs only for these statuses (compared with `status_code`) and exceptions. All matching
        hooks of a scope run in the order of their declaration until one of them sends the response.
        So declare the most specific hook first, and have it return its page.

        An unknown path or method does not belong to any inner scope, so only the application's own
        hooks run for it. In an inner scope, `error(404)` handles a NotFoundException that is raised
        within the scope, for example by a handler. If the exception is raised after the response
        has been sent, no error hook runs.

        Clients can read what a hook puts into the body. `str(cause)` may contain paths, SQL or user
        input, so write your own text.
        """
        if not causes and not isinstance(hook, (int, type)):
            return self._attach("error", hook)
        causes = (hook, *causes)
        kinds = tuple(c for c in causes if isinstance(c, type) and issubclass(c, Exception))
        statuses = [_check_status(c) for c in causes if c not in kinds]

        def attach(hook: _ErrorHook) -> _ErrorHook:
            def run_if_meant(context: WebContext, cause: Exception, status_code: int) -> object:
                is_meant = status_code in statuses or isinstance(cause, kinds)
                return hook(context, cause, status_code) if is_meant else None

            return self._attach("error", hook, run_if_meant)

        return attach

    def _attach(self, kind: str, hook: _Handler, run: _Call | None = None) -> _Handler:
        """Attach `run`, a function that calls `hook`, or `hook` itself if `run` is None."""
        arguments = "context, cause, status_code" if kind == "error" else "context"
        self._begin_declaration()
        if (
            not callable(hook)
            or isinstance(hook, type)
            or not _takes(_signature(hook), *arguments.split(", "))
            or "status_code, cause" in ", ".join(_signatures(hook)[0].parameters)
        ):
            raise _mistake(TypeError, f"the {kind} hook {_value(hook)} must take ({arguments})")
        _refuse_generator(f"the {kind} hook {_value(hook)}", hook)
        getattr(self._hooks, kind).append(update_wrapper(run, hook, updated=()) if run else hook)
        return hook

    # Routes whose handlers are provided by this file.

    def static(self, prefix: str, directory: str | os.PathLike[str]) -> Callable[..., object]:
        """Serve the files below `directory` for GET and HEAD, as `Response.file` does.

        Return a handler, which you can pass to `context.url(handler, path="site.css")` to get the
        URL of a file. For a directory, its index.html is sent, after a redirect that adds a slash
        if the path does not end with one.

        Requests for the following are answered with 404: names with `..`, a leading dot, a
        backslash, a NUL or a %2F, Windows short names (NAME~1.TXT), links that lead out of
        `directory`, and files whose real name leads to a different route. The last rule means that
        a client cannot use a link or a different spelling to get past a guard.

        Raise ValueError if the directory does not exist. Log a WARNING if the directory contains
        the file that calls this method, because your source code would be served as well.
        """
        return _serve_files(self, prefix, directory)

    def mount(self, prefix: str, wsgi_app: _WSGIApplication) -> None:
        """Pass all requests below `prefix` to another WSGI application (PEP 3333).

        The application gets requests with any method. Unless it is a WebApp, a chunked body is
        passed to it with a CONTENT_LENGTH. If such a body is large, it is kept in a temporary file.

        The hooks of the scopes around the mount run as usual. If the application is a WebApp, its
        own `trusted_origins`, and not those of the outer application, are checked before these
        hooks run. If the application raises an exception, or its body is shorter or longer than its
        Content-Length, this is handled like an exception raised by a handler.

        Requests for paths with dot segments or a NUL are answered with 404, and so are requests for
        paths that would belong to a different route if each %2F were a slash.

        The application interprets paths itself. It may ignore case, or decode a path a second time.
        So put a guard for its pages in the application itself, or in a scope around the mount.
        """
        _mount(self, prefix, wsgi_app)


for _name_of_it in _KNOWN_ELSEWHERE["Scope"]:
    setattr(Scope, _name_of_it, _NoSuchName(_name_of_it))


# ---- the log -----------------------------------------------------------------
#
# What does the log say? The logger `webapp` gets a record for each failure. The record has a line
# that names the hook or the route, and a stack trace that begins where this file called the
# application. The exception itself is not changed. Text from a client is always escaped.
#
#     _report(environ, logging.ERROR, "'GET' '/': 500", error)
#
# Each record refers to its request: `record.request.environ` is the WSGI environment, and `request`
# is None if the record does not belong to a request. This lets a filter add a request id to every
# line, or add anything else that the application has put into the environ. The records for access
# lines have this attribute, too.

_CAUSED = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"


def _say(text: str, stream: Any = None) -> None:
    """Write a line to a stream, by default sys.stderr. This never fails.

    Characters that do not exist in the encoding of the stream are escaped.
    """
    stream = stream or sys.stderr
    with suppress(Exception):  # sys.stderr may be any object, and the terminal may be gone
        encoding = getattr(stream, "encoding", None) or "utf-8"
        data = f"{text}\n".encode(encoding, "backslashreplace")
        # This bypasses the buffer, because a thread that blocks while writing to the buffer holds a
        # lock, which would also prevent Python from exiting.
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if raw is None:
            stream.write(data.decode(encoding))
            stream.flush()
        while raw is not None and data:
            written = raw.write(data)
            data = data[written or 0 :]
            if not written:  # the stream is full, and is in non-blocking mode
                time.sleep(0.02)


def _say_lost(failure: BaseException) -> None:
    """Report that a log handler or filter has failed."""
    _say(f"webapp: a log line was lost: {_value(failure, 200)}")


class _LoggedRequest:
    """Hold the request that a log record belongs to.

    Some formatters write all attributes of a record, and some handlers pickle them. Instead of the
    environ, such formatters and handlers get a short text without cookies and passwords.
    """

    __slots__ = ("environ",)

    def __init__(self, environ: _Environ) -> None:
        self.environ = environ

    def __repr__(self) -> str:
        return f"{self.environ['REQUEST_METHOD']!r} {self.environ.get('PATH_INFO', '')!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (repr(self),)


def _report(
    environ: _Environ | None,
    level: int,
    message: str,
    error: BaseException | None = None,
    *,
    where: str = "",
    **extra: object,
) -> None:
    """Write a log record, but never raise an exception.

    If a log handler is broken, the client still gets a response.
    """
    try:
        _enable_loggers()
        if not _LOG.isEnabledFor(level):
            return
        info = (
            None
            if error is None
            else (type(error), error, _outside(error.__traceback__) or error.__traceback__)
        )
        record = _LOG.makeRecord(_LOG.name, level, _FILE, 0, message, (), info)
        vars(record).update(extra)  # makeRecord would refuse names that a record factory has set
        record.request = None if environ is None else _LoggedRequest(environ)
        if error is not None:
            # When a server has to refuse many requests, writing a stack trace for each would fill
            # the disk and take a lot of time.
            refused = isinstance(error, _Overloaded)
            try:
                stack = None if refused else error.__traceback__
                found = traceback.TracebackException(type(error), error, stack)
                lines = [*_trace_lines(found)]
            except Exception:  # because memory is exhausted, or the recursion is too deep
                lines = [f"{_value(error, 200)}, whose stack trace cannot be shown"]
            if refused:
                lines, where = lines[-1:], ""
            # logging.Formatter prints exc_text unchanged if it is set.
            record.exc_text = "\n".join(map(_printable, [where, *lines] if where else lines))
        _LOG.handle(record)
    except Exception as failure:
        _say_lost(failure)


def _trace_lines(found: traceback.TracebackException) -> Iterator[str]:
    """Yield the lines that Python prints for an exception.

    Each message is a single item, including its line breaks. Messages, notes and the source line of
    a SyntaxError may contain text from a client, which must not be able to forge log lines.
    """
    earlier = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    if earlier is not None:
        yield from (*_trace_lines(earlier), "", _CAUSED if found.__cause__ else _DURING, "")
    outside = [number for number, frame in enumerate(found.stack) if frame.filename != _FILE]
    del found.stack[: outside[0] if outside else 0]
    if found.stack:
        yield "Traceback (most recent call last):"
    for frame in found.stack.format():
        # The source line and its marks are indented, but text after a line break in a file name is
        # not.
        yield from re.split(r"\n(?=    )", frame.rstrip("\n"))
    for number, line in enumerate(found.format_exception_only()):
        yield ("  " if number and line[:1] != " " else "") + line.rstrip("\n")
    for inner in getattr(found, "exceptions", None) or ():  # for an ExceptionGroup
        yield from ("  | " + line for line in _trace_lines(inner))


def _forget_earlier(error: BaseException) -> None:
    """Remove the frames of earlier requests from a traceback.

    If the same exception object is raised again, Python keeps these frames.
    """
    first = trace = error.__traceback__
    while first is not None and trace is not None:
        if trace.tb_next is not None and trace.tb_next.tb_frame.f_code is first.tb_frame.f_code:
            trace.tb_next = None
        trace = trace.tb_next


def _log_failure(context: WebContext, cause: Exception, status: int) -> None:
    """Log a status of 500 or more as ERROR with the stack trace, and any other as DEBUG."""
    _enable_loggers()
    request, route = context.request, context.route
    if type(cause) is AttributeError:
        _explain_missing(cause, context, request, context.response, _NO_FILES)
    if status >= 500:
        where = (
            ""
            if route is None
            else f"{route.method} {route.pattern}, handled by {_place(route.handlers[-1])}:"
        )
        _report(
            request.environ,
            logging.ERROR,
            f"{request.method!r} {request.path!r}: {status}",
            cause,
            where=where,
        )
    elif _LOG.isEnabledFor(logging.DEBUG):
        _report(
            request.environ,
            logging.DEBUG,
            f"{request.method!r} {request.path!r}: {status} {_value(cause, 1000)}",
        )
    if "webapp.server" in request.environ:
        _observer(request.environ).explain(_why(cause))


def _why(cause: Exception) -> str:
    """Return the message of an exception on one line, or the place where it was raised."""
    text = "".join(traceback.format_exception_only(type(cause), cause)).rstrip()
    if isinstance(cause, HttpException):
        text = text.partition(": ")[2]
        if text == _STATUS_LINES.get(cause.status_code):
            frame, line = list(traceback.walk_tb(cause.__traceback__))[-1]
            file = basename(frame.f_code.co_filename)
            text = f"{_name(type(cause))} raised at {file}:{line}"
    return _printable(text[:200])  # an access line has to be readable at a glance


def _note_nothing(request: Request, route: Route) -> None:
    """Log as DEBUG that the handler of a GET request built nothing.

    An author who wants an empty response can set the status to 204 or build an empty body.
    """
    if route.method == "GET":
        handler, said = route.handlers[-1], "built and returned nothing: is a return missing?"
        _report(
            request.environ,
            logging.DEBUG,
            f"{request.method!r} {request.path!r}: 204, {_place(handler)} {said}",
        )
        _observer(request.environ).explain(f"{_name(handler)} {said}")


# ---- the application ---------------------------------------------------------
#
# What happens to a request? Every request takes the same path, from the top of `WebApp.__call__` to
# its end:
#
#     _match             find the route and its calls, or else the exception to handle
#     _respond           run on_request, the before hooks (outermost scope first), the executors and
#                        the handler, until one of them has answered
#     _answer_failure    for an unknown path or an exception: resolve the status, log, undo, and run
#                        the error hooks (innermost scope first)
#     _run_after         run the after hooks (innermost scope first)
#     _hand_over         pass status, headers and body to the server (a method of the response)
#     _complete          close files and streams, the last opened first, then run on_complete
#
# The dispatcher relies only on PEP 3333 and on the `_Observer` of its server. Read PEP 3333 and RFC
# 9110 section 15 alongside this section. The picture examples/course/pictures/request.svg shows how
# a request is processed.

# This is Japanese for "an exception occurred in the error handler". The specification prescribes
# the text, because people search the log for it. The text is also used if an after hook, an
# on_close callback or on_complete fails; the traceback and `extra` show what has failed.
_HOOK_FAILED = "エラーハンドラで例外が発生しました"
_OVERRIDABLE = ("on_request", "on_complete", "resolve_status_code")


class _SentStream:
    """Pass a streamed body to the server.

    Closing this object completes the request, even if the body was not read to its end.
    """

    def __init__(self, context: WebContext, chunks: Iterable[bytes]) -> None:
        self._context: Any = context
        self._chunks = iter(chunks)

    def __iter__(self) -> _SentStream:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except Exception as cause:
            context = self._context
            environ = context.request.environ
            if isinstance(cause, _ValueReturned):  # all chunks were sent, so the body is complete
                _report(environ, logging.ERROR, str(cause))
                raise StopIteration from None
            # The server closes the connection, so that the client notices that the body is
            # incomplete.
            observer = _observer(environ)
            if not observer.has_noted(cause):  # otherwise, a mounted WebApp has already logged it
                observer.note_unanswered(cause)
                refused = isinstance(cause, HttpException)  # usually, the client has disconnected
                status = context.app._resolve(context, cause) if refused else 500
                _log_failure(context, cause, status)
            raise

    def close(self) -> None:
        context, self._context = self._context, None
        self._chunks = iter(())
        if context is not None:
            context.app._complete(context)


def _closes_what_is_running(callback: Any) -> bool:
    """Tell whether `callback` is the `close` of a generator that is running.

    Such a generator cannot be closed. This happens when a server stops, because it closes streams
    from another thread.
    """
    with suppress(Exception):  # the callback may be any callable
        return bool(callback.__self__.gi_running)
    return False


def _refuse_decorated(context: object) -> None:
    """Raise TypeError for `@app.on_request`, because the decorated guard would never run."""
    if not isinstance(context, WebContext):
        raise _mistake(
            TypeError,
            f"{_value(context)} is decorated with a method that is meant to be overridden: move it "
            "into a subclass of WebApp, or use before() or after()",
        )


class WebApp(Scope):
    """Declare an application: `app = WebApp(secret_key="...")`.

    A WebApp is the outermost scope. It is also a WSGI application (PEP 3333), and may be called by
    any number of threads. A request that exceeds one of the limits is answered with 413, or with
    400 if its query has too many fields. Pass all arguments by name:

    - `secret_key`: the key that signs the sessions, a str or bytes, or a list of keys. In a list,
      the first key signs all sessions, and sessions signed with the other keys are still accepted,
      so that you can replace a key. A session that was signed with an older key is signed again
      with the first key when a request reads it.
    - `session_cookie`: the name of the cookie in which the session is kept.
    - `session_max_age`: how long a session lasts after its last change, in seconds (by default
      14 days).
    - `max_body_size`: the maximum size of a request's body, in bytes (by default 16 MiB).
    - `max_upload_size`: the maximum size of a multipart form, in bytes. Files in the form are not
      kept in memory. By default, this limit is the same as `max_body_size`.
    - `max_form_memory`: the maximum size, in bytes, of a JSON document, of a urlencoded form, and
      of all fields of a multipart form except its files (by default 1 MiB).
    - `max_fields`: the maximum number of fields in a form or a query (by default 1,000).
    - `trusted_proxies`: how many proxies in front of the server set X-Forwarded-For, -Proto and
      -Host (by default none).
    - `trusted_origins`: the origins of other sites whose pages may send requests that change
      something, such as `["https://shop.example"]`, or `["*"]` for all. Requests from pages of any
      other origin are answered with 403 (see `same_origin`).

    The limits apply to each request separately, so that no single request can use up the memory,
    the disk or the processor. To have no limit, pass a large number such as 10**12.

    Raise ValueError for a limit below 0, a key of fewer than 6 bytes, a `session_cookie` that is
    not a token, and an origin that no browser would send. Raise TypeError for a limit that is not a
    whole number.
    """

    def __init__(
        self,
        *unnamed: NoReturn,
        secret_key: str | bytes | Sequence[str | bytes] | None = None,
        session_cookie: str = "session",
        session_max_age: int = 14 * 86400,
        max_body_size: int = 16 * 2**20,
        max_form_memory: int = 2**20,
        max_fields: int = 1000,
        max_upload_size: int | None = None,
        trusted_proxies: int = 0,
        trusted_origins: Iterable[str] = (),
    ) -> None:
        if unnamed:
            raise _mistake(
                TypeError,
                f"WebApp({_value(unnamed[0])}): an application does not need a name; pass "
                "arguments by name, as in WebApp(secret_key=...)",
            )
        super().__init__(self, None, "")
        if not _TOKEN.fullmatch(session_cookie):
            raise ValueError(f"session_cookie must be a token (RFC 9110), not {session_cookie!r}")
        keys = _signing_keys(secret_key, session_cookie)
        max_age = _check_number("session_max_age", session_max_age)
        if max_age == 0:
            raise ValueError(
                "session_max_age=0 would end every session immediately; pass a number of seconds"
            )
        self._open_session = partial(_Session, keys, session_cookie, max_age)
        self._max_body_size = _check_number("max_body_size", max_body_size)
        if max_upload_size is None:
            max_upload_size = max_body_size
        self._max_upload_size = _check_number("max_upload_size", max_upload_size)
        self._max_form_memory = _check_number("max_form_memory", max_form_memory)
        self._max_json_values = max(_MAX_JSON_VALUES, max_form_memory // _BYTES_PER_VALUE)
        self._max_fields = _check_number("max_fields", max_fields)
        self._trusted_proxies = _check_number("trusted_proxies", trusted_proxies)
        self._trusted_origins = _check_list(
            "trusted_origins", trusted_origins, "https://shop.example"
        )
        self._router = _Router()
        self._routes: list[Route] = []
        self._routes_of: dict[object, list[Route]] = {}  # by handler
        self._open_blocks: list[Scope] = []  # scopes whose `with` block is running
        self._sealing = threading.Lock()
        self._sealed = False

    # An application may override these three methods.

    def on_request(self, context: WebContext) -> object:
        """Run first for every request, even for an unknown path. You may override this method.

        If it answers the request (see `Scope.before`), nothing else runs except `on_complete`. To
        answer a request for an unknown path or method, send or return a body, or set a status of
        300 or more. Just building a body is not enough to replace the 404 or 405 response.
        """
        _refuse_decorated(context)
        return None

    def on_complete(self, context: WebContext) -> None:
        """Run once at the end of every request, even after a failure. You may override this method.

        If the body is a stream or a file, this method runs when the server has closed the body. For
        any other body, it runs before the server writes the response. If this method raises an
        exception, the exception is logged, and the response stays as it is.
        """
        _refuse_decorated(context)

    def resolve_status_code(self, cause: Exception) -> int:
        """Return the response status for the exception `cause`.

        This is the `status_code` of an HttpException, and 500 for any other exception. You may
        override this method. For exceptions that your method does not handle, return
        `super().resolve_status_code(cause)`.
        """
        return cause.status_code if isinstance(cause, HttpException) else 500

    # Everything else is final.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError for a subclass that overrides a method not listed in `_OVERRIDABLE`.

        Also raise TypeError for an attribute with the name of an argument. Mixins are checked, too.
        """
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[: cls.__mro__.index(WebApp)]:
            for name in sorted((_ARGUMENTS | _FINAL) & vars(base).keys()):
                why = f"is an argument: write super().__init__({name}=...)"
                if name in _FINAL:
                    why = (
                        f"would override WebApp.{name}, which is final; an application may "
                        f"override {', '.join(_OVERRIDABLE)}"
                    )
                raise _mistake(TypeError, f"{base.__qualname__}.{name} {why}")
        for name in _OVERRIDABLE:
            _refuse_generator(f"{cls.__qualname__}.{name}", getattr(cls, name))
        _check_methods(cls, "context", "on_request", "on_complete")
        _check_methods(cls, "cause", "resolve_status_code")

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; raise TypeError for a method, and AttributeError for an argument."""
        if name in _ARGUMENTS:
            raise _mistake(AttributeError, f"{name} is an argument: write WebApp({name}=...)")
        if name in _FINAL or name in _OVERRIDABLE:
            raise _mistake(
                TypeError,
                f"WebApp.{name} cannot be assigned to; a subclass may override "
                f"{', '.join(_OVERRIDABLE)}",
            )
        super().__setattr__(name, value)

    def routes(self) -> list[Route]:
        """Return the registered routes, sorted by pattern and then by method."""
        return sorted(self._routes, key=lambda route: (route.pattern, route.method))

    def _applications(self, place: str = "") -> Iterator[tuple[WebApp, str]]:
        """Yield this application and all applications mounted in it, each with its pattern."""
        yield self, place
        for route in self._routes:  # a mount has two routes
            if route._mounted is not None and not route.pattern.endswith("/{path:path}"):
                yield from route._mounted._applications(place + route.pattern)

    def _check_origin(self, context: WebContext) -> None:
        """Run `same_origin` with the trusted origins of the innermost mounted WebApp."""
        if context.request.method in _SAFE_METHODS:
            return
        app, route = self, context.route
        while route is not None and route._mounted is not None:
            app = route._mounted
            app._seal()
            depth = sum(kind != _REST for kind, _ in route._segments)
            context = app._match(_shifted(context.request.environ, depth))
            route = context.route
        if "*" not in app._trusted_origins:
            same_origin(context)

    def run(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        quiet: bool = False,
        reload: bool = False,
        server: str = "webapp",
        **options: Any,
    ) -> None:
        """Serve the application until Ctrl-C or SIGTERM.

        - `host`, `port`: where to listen. Port 0 lets the system choose a port.
        - `quiet`: whether to leave out the access lines.
        - `reload`: whether to restart when a module or template changes.
        - `server`: "webapp", or "wsgiref" for the server in the standard library
          (wsgiref.simple_server), which has no options and answers one request at a time. It
          is meant for learning and for comparison.
        - `options`: the arguments of `Server`.

        Raise SystemExit(1) if the server cannot listen on `host` and `port`, TypeError for an
        option that the server does not have, and ValueError for any other `server`.
        """
        _run(self, host, port, server, quiet=quiet, reload=reload, **options)

    def _seal(self) -> None:
        """Collect the hooks of each route. From then on, declarations raise RuntimeError."""
        with self._sealing:
            if self._sealed:
                return
            for route in self._routes:
                if not route.handlers:
                    raise RuntimeError(f"{route!r} has no handler")
                hooks = route._hooks = _hooks_of(route.scope)
                before = hooks.before
                if route._mounted is not None:
                    before = [self._check_origin, *before]
                elif "*" not in self._trusted_origins and route.method not in _SAFE_METHODS:
                    before = [same_origin, *(hook for hook in before if hook is not same_origin)]
                hooks.before = before
            self._overrides_on_request = type(self).on_request is not WebApp.on_request
            self._overrides_on_complete = type(self).on_complete is not WebApp.on_complete
            self._sealed = True

    # The dispatcher.

    def __call__(self, environ: _Environ, start_response: _StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        if not self._sealed:
            self._seal()
        context = self._match(environ)
        response = context.response
        streamed: Iterable[bytes] | None = None
        try:
            self._respond(context)
            if after := context._hooks.after:
                self._run_after(context, after)
            if response._status == 405 and "allow" not in response._headers:
                self._allow(context)
            session = response._session
            if session is not None and session.old_stamp and context._chain is not None:
                response._renew_session(session)  # not done after a failure
            body = response._hand_over(start_response)
            if isinstance(body, bytes):
                return [body]
            streamed = self._streamed(context, body)
            return streamed
        finally:
            if streamed is None and (self._overrides_on_complete or context.request._closing):
                self._complete(context)

    def _match(self, environ: _Environ) -> WebContext:
        """Return the context of a request, with its route or with the exception to handle."""
        path, method = environ.get("PATH_INFO") or "/", environ["REQUEST_METHOD"]
        # A %2F and a slash look the same in PATH_INFO, but not in the raw target.
        encoded = "%2" in (environ.get("REQUEST_URI") or environ.get("RAW_URI") or "")
        if not encoded:
            route, values = self._router.look_up(path, method)
            if route is not None:
                return WebContext(self, environ, route, values)
        try:
            segments = _path_segments(environ) if encoded else _named_segments(_wsgi_text(path))
        except UnicodeError:
            miss = HttpException(400, "the path is not valid UTF-8")
        else:
            route, values, methods = self._router.match(segments, method)
            if route is not None:
                return WebContext(self, environ, route, values)
            miss = (
                MethodNotAllowedException(methods)
                if methods
                else NotFoundException("no such route")
            )
        return WebContext(self, environ, None, (), miss)

    def _respond(self, context: WebContext) -> None:
        """Run hooks, executors and the handler until one of them answers the request.

        If none of them answers it, send what they have built.
        """
        response, headers_before = context.response, _NO_HEADERS
        try:
            if self._overrides_on_request:
                # If there is no route, building a body does not count as answering, so the client
                # still gets the 404 or 405.
                guard = "" if context._miss else "the method"
                try:
                    value = self.on_request(context)
                    if response._send_if_answered(value, self.on_request, guard):
                        return
                finally:
                    if response.sent:  # after that, only on_complete runs
                        context._hooks = _NO_HOOKS
                headers_before = response._headers
            route = context.route
            if route is None:  # no before hook runs
                self._answer_failure(context, context._miss, headers_before)
                return
            for hook in context._hooks.before:
                if response._send_if_answered(hook(context), hook, "the before hook"):
                    return
                headers_before = response._headers
            for call in context._chain or ():  # add_executor may extend the list during the loop
                value = call(context)
                guard = "the executor" if value is None and call is not route._calls[-1] else ""
                if response._send_if_answered(value, call, guard):
                    return
            if response._body is None and response._status is None:
                _note_nothing(context.request, route)
            response._send(None, route.handlers[-1])
        except Exception as cause:
            self._answer_failure(context, cause, headers_before)

    def _run_after(self, context: WebContext, hooks: Sequence[_Call]) -> None:
        """Run the after hooks, which can only set headers.

        If a hook raises an exception, the hook's changes to the headers are undone.
        """
        response = context.response
        for hook in hooks:
            headers = response._headers
            try:
                value = hook(context)
                if value is not None and value is not response:
                    response._send(value, hook)  # fails, because the response has already been sent
            except Exception as error:
                response._headers = headers
                self._report_hook(context, "after", error, hook)

    # The error path. The status is resolved and logged before any hook runs, so that no hook can
    # hide a failure. Unless the response has been sent, the failed function's changes are undone,
    # so that its cookies and headers do not reach the client.

    def _answer_failure(
        self, context: WebContext, cause: Exception, headers_before: _HeaderPairs
    ) -> None:
        """Answer the request after an exception.

        Only the headers in `headers_before`, which were set before the failed function ran, are
        kept.
        """
        response = context.response
        context._chain = None  # it is too late to add executors
        _forget_earlier(cause)
        status = self._resolve(context, cause)
        _log_failure(context, cause, status)
        if not response.sent:
            response._undo_step(headers_before, status)
            if isinstance(cause, HttpException):
                self._add_headers(context, cause)
            for hook in context._hooks.error:
                self._run_hook(context, hook, cause, status)
                if response.sent:
                    return
            if self._send_what_was_built(context, cause):
                return
        if status >= 500:
            _observer(context.request.environ).note_unanswered(cause)

    def _send_what_was_built(self, context: WebContext, cause: Exception) -> bool:
        """Send the body that error hooks have built, or else the default body.

        Return whether a body built by error hooks was sent. If this body or the session cannot be
        encoded, both are discarded, and the exception is logged as if a hook had raised it.
        """
        response = context.response
        built = response._body is not None
        text = None
        try:
            if not built and isinstance(cause, HttpException) and cause.public is not None:
                text = _check_public(cause.public)  # a subclass may have set it
        except Exception as error:
            self._report_hook(context, "error", error, self._send_what_was_built)
        if built or response._session is not None:
            saved = response._save()
            try:
                if built:
                    response._send()
                else:
                    response._send_default(text)
                return built
            except Exception as error:
                self._report_hook(context, "error", error, self._send_what_was_built)
            if response.sent:  # a stream may send the response and then fail
                return built
            response._restore(saved)
            response._session = None
        response._send_default(text)
        return False

    def _resolve(self, context: WebContext, cause: Exception) -> int:
        try:
            return _check_status(self.resolve_status_code(cause))
        except Exception as error:
            message = f"resolve_status_code failed for {_value(cause)}"
            _report(context.request.environ, logging.ERROR, message, error)
            return 500

    def _add_headers(self, context: WebContext, cause: HttpException) -> None:
        """Set all headers of an exception, or none of them if one cannot be set."""
        response = context.response
        headers = response._headers
        try:
            for name, value in cause.headers.items():
                response.header(name, value)
        except Exception as error:
            response._headers = headers
            self._report_hook(context, "error", error, self._add_headers)

    def _run_hook(self, context: WebContext, hook: _Call, cause: Exception, status: int) -> None:
        """Run an error hook. If it fails without having sent a response, its changes are undone."""
        response = context.response
        response._state = _OPEN  # the hook may replace an earlier function's redirect
        saved = response._save()
        try:
            value = hook(context, cause, status)
            if value is not None and value is not response:
                response._send(value, hook)
        except Exception as error:
            if not response.sent:
                response._restore(saved)
            self._report_hook(context, "error", error, hook)

    def _report_hook(self, context: WebContext, stage: str, error: Exception, hook: _Call) -> None:
        _forget_earlier(error)
        method, path = context.request.method, context.request.path
        _report(
            context.request.environ,
            logging.ERROR,
            _HOOK_FAILED,
            error,
            where=f"{stage} hook {_place(hook)} failed for {method!r} {path!r}:",
            stage=stage,
            hook=_name(hook),
            method=_printable(method),
            path=_printable(path),
        )

    def _allow(self, context: WebContext) -> None:
        """Set the Allow header that a 405 response must have (RFC 9110 section 15.5.6)."""
        methods: Sequence[str] = ()
        with suppress(UnicodeError):
            methods = self._router.match(_path_segments(context.request.environ), "")[2]
        self._add_headers(context, MethodNotAllowedException(methods))

    def _streamed(self, context: WebContext, body: Iterator[bytes] | _FileBody) -> Iterable[bytes]:
        """Return an iterable over a body that is not in memory; its close() ends the request."""
        wrapper = context.request.environ.get("wsgi.file_wrapper")
        # The file wrapper of another server may send more than the requested range. The wrapper of
        # wsgiref never does, and the server in this file sends a range without using a thread.
        if (
            wrapper is None
            or not isinstance(body, _FileBody)
            or (body.size < body.info.st_size and wrapper is not FileWrapper)
        ):
            return _SentStream(context, body)
        wrapped: Iterable[bytes] = wrapper(body, _PIECE)
        body.on_close = partial(self._complete, context)
        return wrapped

    def _complete(self, context: WebContext) -> None:
        """Run the on_close callbacks, on_complete, and the callbacks that on_complete has added."""
        interrupts = [
            self._close_all(context),
            self._run_last(context, "on_complete", self.on_complete, context),
            self._close_all(context),
        ]
        for interrupt in interrupts:
            if interrupt is not None:
                raise interrupt

    def _close_all(self, context: WebContext) -> BaseException | None:
        """Run the on_close callbacks in reverse order."""
        closing = context.request._closing
        interrupt = None
        while closing:
            callback = closing.pop()
            if not _closes_what_is_running(callback):
                interrupt = self._run_last(context, "on_close", callback) or interrupt
        return interrupt

    def _run_last(
        self, context: WebContext, stage: str, function: _Call, *arguments: object
    ) -> BaseException | None:
        """Call a function at the end of a request, and log any exception.

        A KeyboardInterrupt or SystemExit must wait until the other functions have run, so it is
        returned instead of raised.
        """
        try:
            function(*arguments)
        except Exception as error:
            self._report_hook(context, stage, error, function)
        except BaseException as error:
            return error
        return None


_ARGUMENTS = set(WebApp.__init__.__kwdefaults__ or ())
_FINAL = {"__call__", "__setattr__"}.union(
    name for base in (WebApp, Scope) for name in vars(base) if name[:2] != "__"
)
# ABCMeta gives an _abc_impl to each class.
_FINAL.difference_update(_OVERRIDABLE, _KNOWN_ELSEWHERE["Scope"], ["_abc_impl"])


# ---- the test client ---------------------------------------------------------
#
# How does a test send a request without a server? `TestClient` calls any WSGI application
# directly, in the same process.
#
#     TestClient(app).get("/hello/you").text     "Hello you"
#
# It never repairs a response, so a test sees the application's mistakes. `_exchange` plays the part
# of the server in PEP 3333. On a first reading, start with the class `TestClient`.

# The values of a mapping may be lists.
_FieldSource = Union[Mapping[str, Any], Iterable[tuple[str, Any]], None]
_BodySource = Union[bytes, str, Iterable[bytes], None]
_Form = TypeVar("_Form", contravariant=True)  # None for methods that send no form
# The groups are the scheme and the host (or neither), the path, and the query. A client never sends
# the fragment, so no group captures it.
_REQUEST_TARGET = re.compile(
    r"(?:(https?)://([^/?#@]+)|(?=/))(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE
)


def _pairs(fields: _FieldSource, repeated: Any = (list, tuple)) -> list[tuple[str, Any]]:
    """Return fields as (name, value) pairs.

    A value whose type is in `repeated` becomes one pair for each of its items.
    """
    pairs: Any = fields.items() if isinstance(fields, Mapping) else [*(fields or ())]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise _mistake(TypeError, f"fields must be a mapping or pairs, not {_value(fields)}")
    found = [
        (name, item)
        for name, value in pairs
        for item in (value if isinstance(value, repeated) else (value,))
    ]
    for name, item in found:
        if item is None:
            raise _mistake(TypeError, f"the value of {name!r} is None: leave it out, or pass ''")
    return found


def _target_entries(path: str, query: str = "", script_name: str = "") -> _Environ:
    """Return the environ entries for a path or full URL below SCRIPT_NAME, with `query` added."""
    match = _REQUEST_TARGET.fullmatch(quote(path, string.punctuation))
    if match is None:
        raise ValueError(f"a path must begin with / or be a full http or https URL, not {path!r}")
    scheme, host, path, own_query = match.groups("")
    path, query = path or "/", "&".join(filter(None, (own_query, query)))
    target = quote(script_name, _PATH_SAFE, "latin-1") + (f"{path}?{query}" if query else path)
    entries = {"PATH_INFO": _unescape_percent(path), "QUERY_STRING": query, "REQUEST_URI": target}
    return {**entries, "wsgi.url_scheme": scheme.lower(), "HTTP_HOST": host} if host else entries


def _header_entries(headers: _FieldSource) -> _Environ:
    entries: _Environ = {}
    for name, value in _pairs(headers):
        key = _field_key(name)
        comma = "; " if key == "HTTP_COOKIE" else ", "
        entries[key] = f"{entries[key]}{comma}{value}" if key in entries else str(value)
        entries[key].encode("latin-1")
    return entries


def _to_bytes(value: Any) -> bytes:
    value = value.read() if hasattr(value, "read") else value
    return bytes(value) if isinstance(value, _BYTES) else str(value).encode("utf-8", "replace")


# The multipart/form-data encoding algorithm of the HTML standard escapes these characters.
_ESCAPED_NAME = {0x0A: "%0A", 0x0D: "%0D", 0x22: "%22"}


def _encode_multipart(form: _FieldSource, files: _FieldSource) -> tuple[bytes, str]:
    """Return a multipart/form-data body (RFC 7578) and its Content-Type.

    The fields come first in the body, followed by the files.
    """
    boundary = "----webapp" + os.urandom(16).hex()
    parts = [(name, "", value) for name, value in _pairs(form)]
    for name, file in _pairs(files, list):
        named = isinstance(file, tuple) and len(file) in (2, 3)
        given = file if named else (basename(str(getattr(file, "name", name))), file)
        filename, content, content_type = (*given, "application/octet-stream")[:3]
        is_content = isinstance(content, _BYTES) or hasattr(content, "read")
        if not isinstance(filename, str) or not (
            is_content or (named and isinstance(content, str))
        ):
            raise _mistake(
                TypeError,
                "pass a file as bytes, as open(path, 'rb'), or as (filename, content[, content "
                f"type]), not {_value(file)}",
            )
        label = f'; filename="{filename.translate(_ESCAPED_NAME)}"\r\nContent-Type: {content_type}'
        parts.append((name, label, content))
    body = bytearray()
    for name, label, content in parts:
        head = f'Content-Disposition: form-data; name="{name.translate(_ESCAPED_NAME)}"{label}'
        body += f"--{boundary}\r\n{head}\r\n\r\n".encode("utf-8", "replace")
        body += _to_bytes(content) + b"\r\n"
    return bytes(body) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def _encode_content(
    document: Any, form: Any, files: Any, body: Any, in_pieces: bool
) -> tuple[bytes, _Environ]:
    entries: _Environ = {}
    if document is not ...:
        content = json.dumps(document).encode()
        entries["CONTENT_TYPE"] = "application/json"
    elif files is not None:
        content, entries["CONTENT_TYPE"] = _encode_multipart(form, files)
    elif form is not None:
        content = urlencode(_pairs(form), errors="replace").encode()
        entries["CONTENT_TYPE"] = "application/x-www-form-urlencoded"
    elif body is None:
        return b"", entries
    elif isinstance(body, (str, *_BYTES)):
        content = _to_bytes(body)
    else:
        content, entries["wsgi.input_terminated"] = b"".join(body), True
        if in_pieces:
            return content, {**entries, "HTTP_TRANSFER_ENCODING": "chunked"}
    entries["CONTENT_LENGTH"] = str(len(content))
    return content, entries


class TestResponse(_Explained):
    """The response to a request sent by `TestClient`.

    - `status`: the status code, an int.
    - `reason`: the phrase for the status code, such as "Not Found".
    - `headers`: a `Headers` object.
    - `body`: bytes.

    When an assertion fails, pytest shows the `repr` of the response. Like the
    server's access log, it also says why the application refused the request.
    """

    __test__ = False  # otherwise pytest would collect this as a test class wherever it is imported

    def __init__(self, gateway: _Gateway, body: bytes, why: str) -> None:
        self.status, self.reason = int(gateway.status[:3]), gateway.status[4:]
        self.headers = Headers(gateway.headers)
        self.body = body
        self._why = why

    @property
    def text(self) -> str:
        """The body as text, decoded with its charset (UTF-8 by default)."""
        return self.body.decode(
            _parse_options(self.headers.get("Content-Type", ""))[1].get("charset", "utf-8")
        )

    @property
    def json(self) -> Any:
        """The JSON document in the body. Raises ValueError if the body is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ValueError(
                f"the response is {self.headers.get('Content-Type')}, not JSON: {self!r}"
            ) from error

    def __repr__(self) -> str:
        why = f", because: {self._why}" if self._why else ""
        return f"<{self.status} {self.reason}: {self.body[:100]!r}{why}>"


class _Send(Protocol[_Form]):
    """The signature that type checkers see for `TestClient.get` and the other methods."""

    def __call__(
        self,
        path: str,
        *,
        query: _FieldSource = None,
        form: _Form = _NOT_GIVEN,
        json: Any = ...,
        files: _Form = _NOT_GIVEN,
        body: _BodySource = None,
        headers: _FieldSource = None,
        environ: Mapping[str, Any] | None = None,
        follow_redirects: bool = False,
    ) -> TestResponse: ...


def _verb(request: Any, method: str) -> Any:
    """Return a function for `TestClient` that sends requests with this HTTP method."""
    send: Any = partialmethod(request, method).__get__(None, object)
    send.__name__ = method.lower()  # for help() and editors
    send.__qualname__ = f"TestClient.{send.__name__}"
    return send


class TestClient(_Explained):
    """Call an application without a server: `TestClient(app).get("/").text`.

    Each call returns a `TestResponse`, which is the response that a browser
    would get. With `raise_errors=True`, an exception that leads to a status of
    500 or more is raised instead, unless an error hook has handled it. If
    there are several such exceptions, the first one is raised. Responses such
    as 400 and 404 are still returned, and their `repr` says why the request
    was refused. An exception that escapes from the application, for example
    from a stream, is always raised. RuntimeError is raised if a body is not as
    long as its Content-Length.

    `cookies` is a dict that maps names to values. Set-Cookie headers change
    it, and each request sends every cookie in it: Path, Domain and Secure are
    ignored, and cookies do not expire between requests.
    """

    __test__ = False
    cookies: dict[str, str]
    """The cookies that each request sends, a dict of names and values as in a Cookie header."""

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Set an attribute; raise AttributeError for a setting that a client does not have."""
            if name in _KNOWN_ELSEWHERE["TestClient"]:
                advice = _advice(self, name, ())
                raise _mistake(AttributeError, f"client.{name} cannot be set: {advice}")
            super().__setattr__(name, value)

    def __init__(self, app: Callable[..., Iterable[bytes]], *, raise_errors: bool = False) -> None:
        if mistake := _why_not_wsgi(app):
            raise TypeError(f"TestClient(): {mistake}")
        _check_flags(raise_errors=raise_errors)
        vars(self)["cookies"] = {}
        self._app = app
        self._raise_errors = raise_errors

    def request(
        self,
        method: str,
        path: str,
        *unnamed: NoReturn,
        query: _FieldSource = None,
        form: _FieldSource = None,
        json: Any = ...,
        files: _FieldSource = None,
        body: _BodySource = None,
        headers: _FieldSource = None,
        environ: Mapping[str, Any] | None = None,
        follow_redirects: bool = False,
        **unknown: NoReturn,
    ) -> TestResponse:
        """Send a request and return the response.

        `get`, `post` and the others take the same arguments, except `method`.

        - `method`: the method, such as "GET".
        - `path`: the path below the SCRIPT_NAME of `environ`, with or without
          a query string. It is percent-encoded where necessary. A full URL
          also sets the scheme and the host.
        - `query`, `form`, `headers`: a mapping, whose values may be lists, or
          (name, value) pairs. Line breaks in values are not changed. A cookie
          in `headers` overrides the cookie with the same name in `cookies`.
        - `json`: any document, including None.
        - `files`: a mapping or pairs, like `form`. Each file is bytes, an open
          binary file, or a tuple (filename, content[, content type]).
        - `body`: bytes, text, or an iterable of bytes. An iterable is read
          completely before the request is sent. A WebApp gets it as a chunked
          body, and any other application gets it with a Content-Length.
        - `environ`: entries for the environ. They replace the entries made
          from the other arguments.
        - `follow_redirects`: if True, follow up to 10 redirects, and raise
          RuntimeError if there are more. Every host is treated as the host of
          this application. A redirect to a path outside the application's
          SCRIPT_NAME is returned instead of being followed.

        Raise TypeError in these cases:

        - more than one kind of body: `json`, `body`, or `form` and `files`
        - `form` or `files` with GET or HEAD
        - fields that are a str, or a field whose value is None
        - a file that is a str, because it might be meant as a path
        - a `body` that is a mapping
        """
        for name in unknown:
            known = TestClient.request.__kwdefaults__ or ()
            advice = _advice(self, name, known)
            raise _mistake(TypeError, f"a request takes no {name}: {advice}")
        if unnamed or isinstance(body, Mapping):
            raise _mistake(TypeError, "pass data by name: form={...}, json={...} or query={...}")
        _check_text("the path of a request", path, ', such as "/hello"')
        _check_flags(follow_redirects=follow_redirects)
        has_form = form is not None or files is not None
        if method in ("GET", "HEAD") and has_form:
            raise _mistake(TypeError, f"a {method} request has no form: pass query={{...}}")
        if (json is not ...) + (body is not None) + has_form > 1:
            raise TypeError("a request has only one body: pass json, or body, or form and files")
        if body is None and method in ("POST", "PUT", "PATCH"):
            body = b""  # so that the request has a Content-Length of 0 (RFC 9110 section 8.6)
        # Like the server, the client passes a chunked body only to a WebApp. Any other application
        # gets a Content-Length.
        in_pieces = isinstance(self._app, WebApp)
        content, described = _encode_content(json, form, files, body, in_pieces)
        entries = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.input": BytesIO(content),
            "wsgi.errors": sys.stderr,
            **_target_entries(
                path,
                urlencode(_pairs(query), errors="replace"),
                (environ or {}).get("SCRIPT_NAME", ""),
            ),
            **described,
            **_header_entries(headers),
            **(environ or {}),
        }
        setup_testing_defaults(entries)
        response = self._exchange(entries)
        return self._follow(response, entries, content) if follow_redirects else response

    get: _Send[None] = _verb(request, "GET")
    """Send a GET request. The arguments are those of `request`, except `method`."""
    post: _Send[_FieldSource] = _verb(request, "POST")
    """Send a POST request. The arguments are those of `request`, except `method`."""
    put: _Send[_FieldSource] = _verb(request, "PUT")
    """Send a PUT request. The arguments are those of `request`, except `method`."""
    patch: _Send[_FieldSource] = _verb(request, "PATCH")
    """Send a PATCH request. The arguments are those of `request`, except `method`."""
    delete: _Send[_FieldSource] = _verb(request, "DELETE")
    """Send a DELETE request. The arguments are those of `request`, except `method`."""
    head: _Send[None] = _verb(request, "HEAD")
    """Send a HEAD request. The arguments are those of `request`, except `method`."""
    options: _Send[_FieldSource] = _verb(request, "OPTIONS")
    """Send an OPTIONS request. The arguments are those of `request`, except `method`."""

    def _follow(self, response: TestResponse, environ: _Environ, content: bytes) -> TestResponse:
        """Follow redirects, and return the last response.

        The statuses 307 and 308 repeat the request. The others turn the request into a GET request
        without a body, except that a HEAD request stays a HEAD request.
        """
        urls = [f"{environ['wsgi.url_scheme']}://{environ['HTTP_HOST']}{environ['REQUEST_URI']}"]
        script_name = environ["SCRIPT_NAME"]
        while response.status in (301, 302, 303, 307, 308) and "Location" in response.headers:
            url = urljoin(urls[-1], response.headers["Location"])
            entries = _target_entries(url)
            path = entries["PATH_INFO"]
            if not f"{path}/".startswith(f"{script_name}/"):  # the redirect leaves the application
                return response
            urls.append(url)
            if len(urls) > 11:
                raise RuntimeError(f"more than 10 redirects: {' -> '.join(urls)}")
            if response.status < 307:
                content = b""
                if environ["REQUEST_METHOD"] != "HEAD":
                    environ["REQUEST_METHOD"] = "GET"
                for name in (*_UNPREFIXED, "wsgi.input_terminated", "HTTP_TRANSFER_ENCODING"):
                    environ.pop(name, None)
            environ.update(entries)
            environ["PATH_INFO"] = path[len(script_name) :]
            environ["wsgi.input"] = BytesIO(content)
            response = self._exchange(environ)
        return response

    def _exchange(self, environ: _Environ) -> TestResponse:
        observer, gateway = _Observer(), _Gateway()
        cookies = self._cookie_header(environ.get("HTTP_COOKIE", ""))
        # The application may change its environ, so it gets a copy. Redirects are followed with the
        # original.
        environ = {"webapp.server": observer, **environ}
        if cookies:
            environ["HTTP_COOKIE"] = cookies
        try:
            result = self._app(environ, gateway.start_response)
            try:
                body = b"".join(gateway.blocks(result, environ["REQUEST_METHOD"]))
            finally:
                getattr(result, "close", lambda: None)()
            response = TestResponse(gateway, body, observer.reason)
            for header in response.headers.getall("Set-Cookie"):
                self._keep_cookie(header)
            if self._raise_errors and observer.errors:
                raise observer.errors[0]
            return response
        finally:
            observer.errors = ()  # this breaks a reference cycle through the exceptions' frames

    def _cookie_header(self, given: str) -> str:
        """Return the Cookie header `given`, with the remaining cookies from the jar added to it."""
        names = {pair.partition("=")[0].strip() for pair in given.split(";")}
        jar = "; ".join(
            f"{name}={self.cookies[name]}" for name in self.cookies if name not in names
        )
        octets = jar.encode("utf-8", "surrogateescape")
        return "; ".join(filter(None, (given, octets.decode("latin-1"))))

    def _keep_cookie(self, header: str) -> None:
        # Bytes that are not UTF-8 become surrogates, so that every value is sent back unchanged.
        parts = _wsgi_text(header, "surrogateescape").split(";")
        (name, _, value), *rest = (
            [side.strip(" \t") for side in part.partition("=")] for part in parts
        )
        attributes = {attribute.lower(): text for attribute, _, text in rest}
        expires = _parse_http_date(attributes.get("expires", ""))
        max_age = attributes.get("max-age", "")
        gone = expires is not None and expires <= time.time()
        # Max-Age overrides Expires (RFC 6265 section 5.3).
        if re.fullmatch("-?[0-9]{1,18}", max_age):
            gone = int(max_age) <= 0
        self.cookies[name] = value
        if gone:
            del self.cookies[name]


# ---- the head of a request ---------------------------------------------------
#
# Which request is this? The head of a request consists of its request line and header fields. The
# server reads the head strictly, following RFC 9112 sections 2 to 6. It refuses bytes that two
# parsers could interpret differently, because a proxy may be the other parser (request smuggling).
# Whether a request is refused depends only on its bytes, not on the packets in which they arrive.
#
#     b"GET /a%20b?c HTTP/1.1\r\nHost: x"
#         ->  a _Head: method "GET", target "/a%20b?c", environ["PATH_INFO"] "/a b"

_MAX_REQUEST_LINE = 8 * 1024 + 256  # RFC 9112 section 3 recommends at least 8,000 bytes
_MAX_FIELDS = 128  # browsers behind two proxies send about 30
_MAX_HEAD = 64 * 1024  # bytes of all header fields; a Kerberos ticket alone may take 48 KiB

_REQUEST_LINE = re.compile(rf"({_TCHAR}+) ([!\"$-~]+) HTTP/([0-9])\.([0-9])")
_ABSOLUTE = re.compile(r"(?i:https?)://([^/?]*)/?(.*)")
_EMPTY_LINES = re.compile(rb"(?:\r\n)+")
_LINE_BYTES = bytes({9, *range(32, 256)} - {127})  # the tab is the only control character allowed


class _Head:
    length = 0  # the length of the body, from Content-Length
    chunked = False  # True if the body is sent in chunks
    expects = False  # True if the client may wait for "100 Continue" before it sends the body

    def __init__(self, method: str, target: str, modern: bool) -> None:
        self.method = method
        self.target = target  # as the client sent it, for the log
        self.modern = modern  # True for HTTP/1.1 or a later 1.x: the client understands chunks
        self.environ: _Environ = {}  # entries for the WSGI environ
        self.keep_alive = modern  # True if the client wants the connection to stay open


def _parse_head(data: bytes) -> _Head:
    """Parse a head, given without its final empty line; raise HttpException if it is malformed."""
    lines = data.decode("latin-1").split("\r\n")
    _check_lines(data)
    match = _REQUEST_LINE.fullmatch(lines.pop(0))
    if match is None:
        raise HttpException(400, "malformed request line")
    method, target, major, minor = match.groups()
    if major != "1":
        raise HttpException(505, f"HTTP/{major}.{minor}")
    head = _Head(method, target, minor != "0")
    _add_fields(head.environ, lines)
    _read_framing(head)
    _add_target(head)
    return head


def _check_lines(data: bytes) -> None:
    """Raise HttpException if a head, or part of one, is too long or contains forbidden bytes."""
    count = data.count(b"\r\n")
    # Once all bytes that are allowed in a line have been removed, only line endings should remain.
    if data.translate(None, _LINE_BYTES) != b"\r\n" * count:
        if data[:1] == b"\x16":  # the first byte of every TLS connection (RFC 8446 section 5.1)
            raise HttpException(400, "TLS/https was used on a plain http port")
        raise HttpException(400, "a control character or a bare line end in the header")
    length = data.find(b"\r\n") if count else len(data)
    if length > _MAX_REQUEST_LINE:
        raise HttpException(414, "the request line is too long")
    if len(data) - length > _MAX_HEAD or count > _MAX_FIELDS:
        raise HttpException(431, "the header is too long")


def _add_fields(environ: _Environ, lines: Iterable[str]) -> None:
    """Add header fields to `environ`; raise HttpException if one is malformed."""
    for line in lines:
        name, colon, value = line.partition(":")
        key = _environ_key(name)
        if not colon:
            raise HttpException(400, "malformed header field")
        value = value.strip(" \t")
        if key in environ:
            value = environ[key] + ("; " if key == "HTTP_COOKIE" else ", ") + value
        environ[key] = value
    environ.pop("", None)


@lru_cache(maxsize=256)
def _environ_key(name: str) -> str:
    """Return the environ key of a header field, or "" for a name with an underscore.

    A name with an underscore could pass for a different name, because hyphens become underscores in
    the keys. Raise HttpException for a name that is malformed or too long.
    """
    if len(name) > 1024:  # because the cache keeps the names in memory
        raise HttpException(431, "the name of a header field is too long")
    if not _TOKEN.fullmatch(name):
        raise HttpException(400, "malformed header field")
    return "" if "_" in name else _field_key(name)


def _read_framing(head: _Head) -> None:
    """Find out where the request ends; raise HttpException if there is any doubt."""
    environ = head.environ
    host = environ.get("HTTP_HOST")  # two Host fields would be joined by a comma and a space
    if host is None and head.modern:
        raise HttpException(400, "no Host header")
    if host == "":  # health checks send an empty Host, but browsers do not
        del environ["HTTP_HOST"]
    elif host is not None and not _is_authority(host):
        raise HttpException(400, "malformed Host")
    length = environ.get("CONTENT_LENGTH")
    if length is not None:
        if not _CONTENT_LENGTH.fullmatch(length):
            raise HttpException(400, "malformed Content-Length")
        head.length = int(length)
    if "HTTP_TRANSFER_ENCODING" in environ:
        if length is not None:  # RFC 9112 section 6.3
            raise HttpException(400, "both Transfer-Encoding and Content-Length")
        if environ["HTTP_TRANSFER_ENCODING"].lower() != "chunked":
            raise HttpException(501, "unknown transfer coding")
        if not head.modern:
            raise HttpException(400, "Transfer-Encoding in an HTTP/1.0 request")
        head.chunked = True
    if "HTTP_CONNECTION" in environ:
        options = [option.strip(" \t") for option in environ["HTTP_CONNECTION"].lower().split(",")]
        head.keep_alive = "close" not in options and (head.modern or "keep-alive" in options)
    if "HTTP_EXPECT" in environ:
        head.expects = head.modern and environ["HTTP_EXPECT"].lower() == "100-continue"


def _add_target(head: _Head) -> None:
    """Add the request line to the environ (RFC 9112 section 3.2).

    Raise HttpException if the request does not ask for a resource on this server.
    """
    environ, target = head.environ, head.target
    if head.method == "CONNECT":
        raise HttpException(501, "this server is not a proxy")
    if target[0] != "/" and (target != "*" or head.method != "OPTIONS"):
        match = _ABSOLUTE.fullmatch(target)
        if match is None or not _is_authority(match[1]):
            raise HttpException(400, "malformed request target")
        # The authority of an absolute target replaces Host (section 3.2.2).
        environ["HTTP_HOST"], target = match[1], "/" + match[2]
    path, _, environ["QUERY_STRING"] = target.partition("?")
    environ["REQUEST_METHOD"] = head.method
    environ["SERVER_PROTOCOL"] = "HTTP/1.1" if head.modern else "HTTP/1.0"
    environ["PATH_INFO"] = _unescape_percent(path)
    environ["REQUEST_URI"] = target


def _check_hosts(hosts: Any) -> set[str]:
    """Return the names in `trusted_hosts`.

    Raise ValueError for a name that no client could send.
    """
    listed = _check_list("trusted_hosts", hosts, "shop.example")
    if not listed:
        raise ValueError("trusted_hosts is empty, so nobody could reach the server: list a name")
    return {_host_and_port(host)[0] for host in listed}


# ---- the body of a request ---------------------------------------------------
#
# Where does a body end, and who waits for it? A `_Body` decodes bytes as they arrive (RFC 9112
# sections 6 and 7):
#
#     b"3\r\nabc\r\n0\r\n\r\nGET ..."
#         ->  decoded b"abc", which is complete; the rest, b"GET ...", is the next request
#
# A body is read in one of two ways. A body of up to 2 MiB is collected in memory by the leader (see
# "the thread pool") before the application runs. A larger body is read from the connection by a
# thread whenever the application asks for more. The leader also begins to collect a chunked body,
# because its length is not known in advance. If the body exceeds 2 MiB, a thread reads the rest. A
# thread also reads the rest of any body when the memory for all bodies is full. If the body cannot
# be received, the exception is raised where the application reads the body.

_ANSWERS, _STREAMS, _EVENTS, _UPLOADS = range(4)  # kinds of slots: see "the thread pool"
_SPARED = 1  # extra seconds after a deadline, for reading bytes that had arrived by then
_COLLECTED = 2 * 2**20  # bytes of a body that the leader collects
_MAX_CHUNK_LINE = 4 * 1024
# A body may contain this many bytes of chunk sizes, extensions and trailers, plus two more for each
# byte of its content. The remaining allowance never exceeds this number, so that a few large chunks
# do not make room for thousands of tiny ones.
_MAX_FRAMING = 64 * 1024
# How many bytes of a head or of chunk-size lines are received at a time. A chunk-size line may have
# as few as three bytes, and other connections have to wait while such lines are decoded.
_LINES_AT_ONCE = 2 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Only one thread decodes at a time. Decoding holds the interpreter lock, so the leader would
# otherwise have to wait for every thread that is decoding.
_decoding = _Turns()
# These kinds of line may come next in a chunked body.
_SIZE, _END_OF_CHUNK, _TRAILER = "size", "end of chunk", "trailer"

_CHUNK = re.compile(
    rf"([0-9A-Fa-f]{{1,15}})(?:[ \t]*;[ \t]*{_TCHAR}+"
    rf"(?:[ \t]*=[ \t]*(?:{_TCHAR}+|\"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t "
    r"-~\x80-\xff])*\"))?)*"
)


class _MinimumRate:
    """How many seconds a client has left before it counts as too slow.

    A client starts with `limit` seconds, and gains as many again for every _PIECE bytes that are
    transferred. A fast client can accumulate at most `burst` times the limit.
    """

    ended = False  # True if nobody is waiting any longer, however much time is left

    def __init__(self, limit: float, burst: int) -> None:
        self._limit = self.left = limit
        self._most = limit * burst

    def moved(self, size: int, seconds: float = 0.0) -> None:
        """Count bytes that were transferred, and the seconds that the transfer took."""
        left = self.left - seconds
        if self.left > 0:  # do not go below 0 at once: the process may have been suspended
            left = max(0.0, left)
        self.left = min(self._most, left + self._limit * size / _PIECE)


class _Body:
    """Decode the body of a request, and keep what the application has not read yet.

    The leader receives the bytes until a thread opens the body for the application. That thread
    then receives the rest.
    """

    def __init__(self, connection: _Connection, head: _Head) -> None:
        self.connection = connection
        self._accounts = connection.server._accounts
        self.left = head.length  # how many bytes of the body or current chunk have yet to arrive
        self.chunks_left = head.chunked  # True until the last chunk and its trailers have arrived
        self.expected = head.expects  # True while the client may wait for "100 Continue"
        # A 400, 408 or 503. It is raised once earlier bytes have been read. Any thread may set it.
        self.failure: HttpException | None = None
        self.decoded: list[bytes] = []  # decoded bytes that have not been read yet
        self.size = 0  # how many bytes have been decoded so far
        self.began = connection.server._now  # when its head arrived
        self.spooled = self.files = 0  # bytes in temporary files, and the number of these files
        self.rate = _MinimumRate(connection.server.body_timeout, burst=4)
        # `feed` sets these two: whether the body is complete, and how many bytes to receive at a
        # time. For a body with a length, `wanted` never includes bytes of the next request.
        self.complete = False
        self.wanted = 0
        self._framing_left = _MAX_FRAMING  # how many more bytes of framing the body may have
        self._next_line = _SIZE
        self._taken = BytesIO()  # the decoded bytes that are being read
        self._read = 0  # how many decoded bytes have been read
        # These three are for a body that a thread receives: whether the body has a slot, so that
        # the thread may wait; how many bytes had arrived when the body was opened; and how many
        # bytes the application keeps in memory.
        self._may_wait = False
        self._collected: int | None = None
        self._kept = 0

    def feed(self, data: bytes) -> bytes:
        """Decode bytes of the body, and return those that are left.

        The bytes that are left belong to the next request or cannot be decoded yet.
        """
        before = self.size
        start = 0
        try:
            while True:
                piece = data[start : start + self.left]
                size = len(piece)
                if size:
                    self.decoded.append(piece)
                self.size += size
                self._framing_left = min(_MAX_FRAMING, self._framing_left + 2 * size)
                self.left -= size
                start += size
                line = self._find_line(data, start) if self.chunks_left and not self.left else b""
                if not line:
                    break
                start += len(line)
                self._read_line(line[:-2])
            if len(self.decoded) > 1000:  # each piece takes up extra memory
                self.decoded = [b"".join(self.decoded)]
        except HttpException as failure:
            self.failure = copy(failure)  # without the traceback, which would keep frames alive
        self.rate.moved(self.size - before)
        self.complete = not (self.left or self.chunks_left)
        lines = _LINES_AT_ONCE if self.chunks_left else 0
        self.wanted = min(self.left + lines, 4 * _PIECE)
        return data[start:]

    def give_up(self, failure: HttpException) -> None:
        """Make the body fail, to free its memory or slot. Any thread may call this."""
        self.failure = failure
        self.rate.ended = True
        self.connection.server._warn(
            "bodies", f"the server gave up on a request body: {failure.message}"
        )

    def _find_line(self, data: bytes, start: int) -> bytes:
        """Return the line at `start` with its CRLF, or b"" if it has not arrived completely."""
        end = data.find(b"\n", start, start + _MAX_CHUNK_LINE) + 1
        if not end and len(data) - start < _MAX_CHUNK_LINE:
            return b""
        line = data[start:end]
        if line[-2:] != b"\r\n" or line[:-2].translate(None, _LINE_BYTES):
            raise HttpException(
                400, "a line of a chunked body is too long or contains a control character"
            )
        self._framing_left -= len(line)
        if self._framing_left < 0:
            raise HttpException(
                400, "the chunk sizes and extensions of a body are too long for its content"
            )
        return line

    def _read_line(self, line: bytes) -> None:
        """Parse a line of a chunked body (RFC 9112 section 7.1)."""
        if self._next_line == _SIZE:
            match = _CHUNK.fullmatch(line.decode("latin-1"))
            if match is None:
                raise HttpException(400, "malformed chunk")
            self.left = int(match[1], 16)
            self._next_line = _END_OF_CHUNK if self.left else _TRAILER
        elif self._next_line == _END_OF_CHUNK:
            if line:
                raise HttpException(400, "a chunk is longer than its stated size")
            self._next_line = _SIZE
        elif line:  # trailers are checked, but not used
            _add_fields({}, [line.decode("latin-1")])
        else:
            self.chunks_left = False

    # The thread that runs the application calls these methods.

    def open(self, observer: _Observer) -> io.BufferedIOBase:
        """Return the body as a file; reading from it receives bytes that have not arrived yet."""
        if self.complete:
            decoded, self.decoded = self.decoded, []
            return BytesIO(b"".join(decoded))
        self._collected = self.size
        return _BodyFile(self, observer)

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes, waiting for the first one if necessary.

        The result is b"" at the end of the body. Raise HttpException if the body has failed.
        """
        while not (data := self._taken.read(size)) and (self.decoded or not self.complete):
            if not self.decoded:
                if self.failure is not None:
                    raise copy(self.failure)
                self._receive()
            # If the bytes are all read at once, they are not copied again.
            self._taken = BytesIO(b"".join(self.decoded))
            self.decoded = []
        self._read += len(data)
        if self._read == self.size:  # free the memory of these bytes while the thread waits
            self._taken = BytesIO()
        return data

    def _receive(self) -> None:
        """Wait for more of the body, or note why it has failed."""
        connection = self.connection
        try:
            if not self._may_wait:
                self._take_slot()
            if self.expected:
                self.expected = False
                connection.send_now([_CONTINUE], self.rate)
            data = None
            while data is None:
                started = monotonic()
                data = connection.receive(min(self.wanted, _PIECE))
                # Decrypting post-handshake messages takes time but yields no bytes of the body.
                self.rate.moved(0, monotonic() - started)
                is_late = self.rate.left < -_SPARED
                if is_late or (data is None and not connection.wait(self.rate)):
                    raise HttpException(408, "the body arrived too slowly")
            if not data:
                connection.lost = True
                raise ConnectionError("the client has closed its side")
            connection.buffer += data
            with _decoding.take() if self.chunks_left else nullcontext():
                connection.buffer = self.feed(connection.buffer)
        except HttpException as failure:  # the client was too slow, or all slots were taken
            self.failure = self.failure or copy(failure)
        except OSError:
            self.failure = HttpException(400, "the client went away in the middle of the body")

    def _take_slot(self) -> None:
        # The slot is taken even if no wait is necessary, because a client that sends fast enough
        # could otherwise keep the leader, or one of the _ANSWERS slots, busy with its upload alone.
        self.connection.pool.take_slot(self.connection, _UPLOADS)
        self.connection.pool.leave_lead()
        self._may_wait = True

    def keep(self, size: int) -> int:
        """Count bytes that the application will keep in memory; wait until some of them fit.

        Return how many bytes may be read now.
        """
        if self._collected is None or not size:  # the body was complete when it was opened
            return size
        # There is always room for the first _PIECE bytes, so the first step ends there.
        size = min(size, _PIECE - self._kept if self._kept < _PIECE else _PIECE)
        size = min(size, self.size - self._read or size)  # bytes already in memory come first
        if self._kept + size > self._collected:
            if not self._may_wait:
                self._take_slot()
            self._accounts.grow_body(self.connection, self._kept + size)
        self._kept += size
        return size

    def give_back(self, size: int) -> None:
        """Stop counting bytes that the application no longer keeps or did not read after all."""
        if self._collected is None or not size:
            return
        self._kept -= size
        most = max(self._collected, self._kept)
        self._accounts.count_body(self.connection, most)


# ---- access lines ------------------------------------------------------------
#
# How is the log written without making a request wait for a slow terminal? Threads put calls into a
# bounded queue, and the `_LogWriter` thread makes these calls:
#
#     log_writer.enqueue(_log_access, environ, facts)
#         the thread calls _log_access(environ, facts) a moment later
#     _log_access(environ, {"remote_address": "127.0.0.1", "method": "GET", "target": "/", ...})
#         "09:41:07 127.0.0.1 GET / 200 512 0.4 ms"
#
# The logger `webapp.access` gets one record for each request. The facts are attributes of the
# record, so that formatters and filters can use them. Text that comes from a client is escaped. If
# a log handler raises an exception, the line is lost. If a handler, a terminal or a pipe blocks,
# the queue fills up, and further lines are dropped and counted.

_PAUSE = 0.02  # seconds between two checks of the queue
_MOST_QUEUED = 4000  # calls in the queue
_LONGEST_LOG_END = 1  # seconds that `Server.stop` waits for the last lines


def _log_access(environ: _Environ | None, facts: _Values) -> str | None:
    """Log an access line; if no handler accepts it, return the text for sys.stderr."""
    _enable_loggers()
    # The level of the root logger is ignored for access lines.
    least = _ACCESS.level or _LOG.level or logging.INFO
    if _ACCESS.disabled or max(least, _ACCESS.manager.disable + 1) > logging.INFO:
        return None
    line = "%(remote_address)s %(method)s %(target)s %(status)d %(size)d %(milliseconds).1f ms"
    if facts["reason"]:
        line += "  %(reason)s"
    record = _ACCESS.makeRecord(_ACCESS.name, logging.INFO, _FILE, 0, line, (), None)
    record.args = facts
    vars(record).update(facts)
    record.request = None if environ is None else _LoggedRequest(environ)
    if _is_taken():
        _ACCESS.handle(record)
    elif passed := _ACCESS.filter(record):  # since Python 3.12, filters may return another record
        return (record if passed is True else passed).getMessage()
    return None


def _is_taken() -> bool:
    """Tell whether any handler of the logger or of its parents accepts access lines.

    If none does, the log thread itself writes them, just as `logging.lastResort` writes warnings.
    """
    logger: Any = _ACCESS
    while logger is not None:
        for handler in logger.handlers:
            if handler.level <= logging.INFO:
                return True
        logger = logger.parent if logger.propagate else None
    return False


class _LogWriter:
    """The thread that writes access lines and the server's own log records."""

    _dropped = 0

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()  # functions and their arguments
        self._some = threading.Event()
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._write_queue, name="webapp-log", daemon=True)

    def enqueue(self, write: Callable[..., object], *arguments: Any) -> None:
        """Have the thread call `write` with these arguments."""
        if len(self._queue) < _MOST_QUEUED:
            self._queue.append((write, arguments))
        else:
            self._dropped += 1
        if not self._some.is_set():
            self._some.set()

    def end(self) -> None:
        self._ended.set()
        self._some.set()

    def _write_queue(self) -> None:
        while self._queue or not self._ended.is_set():
            self._some.wait()
            self._ended.wait(_PAUSE)
            self._some.clear()
            lines: list[str] = []
            for _ in range(len(self._queue)):
                write, arguments = self._queue.popleft()
                try:
                    if line := write(*arguments):
                        lines.append(line)
                except BaseException as error:  # a log handler may call sys.exit()
                    _say_lost(error)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                _say(f"webapp: {dropped} log lines were dropped because writing took too long")
            if lines:  # all of them are written at once
                clock = time.strftime("%H:%M:%S")
                _say("\n".join(f"{clock} {line}" for line in lines))


# ---- the accounts of memory --------------------------------------------------
#
# How many bytes does a server keep for its clients, and what happens when there are too many? There
# are three accounts, each with a limit:
#
# account   what it counts                          limit           what happens beyond the limit
#
# bodies    bytes of request bodies in memory       max_collected   bodies wait unread, and their
#                                                                   requests are answered with 503
# spooled   bytes of request bodies in temporary    max_spooled     the server gives up on the
#           files                                                   slowest upload
# unsent    bytes of responses in memory that       max_unsent      the slowest reader is
#           clients have not read yet                               disconnected
#
# A connection has only one request at a time, so two of the accounts identify a request by its
# connection. Which upload does the server give up on to make room for the others? It is the
# unfinished upload that has arrived most slowly since its head was received or, if all of them have
# only just begun, the one that needs more space. `_Body.give_up` notes the failure, and
# HttpException 503 is raised when the application next reads from the body. The same method is
# called to free a slot for uploads, but with status 408.
#
# If each body holds part of the memory, could all bodies wait for each other forever? No, because
# the first body that finds no room may grow beyond the limit until its request ends. The others
# wait for up to body_timeout. When memory becomes free, one of the waiting threads wakes up and, if
# it finds room, wakes the next. (If all of them woke up each time, the leader would have to wait
# for hundreds of threads.) Bytes are counted when they are read, and not when a Content-Length
# announces them; otherwise, slow clients could reserve all the memory by sending only a few bytes.
# There is always room for the first _PIECE bytes of a body, so that small forms are answered while
# large bodies wait.

_LEAST_AGE = 2  # a body cannot count as slow until this many seconds after its head arrived
_LOOK = 0.5  # seconds after which a waiting thread checks whether its connection was cut


class _Account:
    """Counts the bytes that are kept for each connection, or for each body."""

    def __init__(self) -> None:
        self.total = 0
        self.sizes: dict[Any, int] = {}

    def total_with(self, owner: Any, size: int) -> int:
        """Return what the total would be if the owner had `size` bytes."""
        return self.total + size - self.sizes.get(owner, 0)

    def set(self, owner: Any, size: int) -> None:
        self.total = self.total_with(owner, size)
        self.sizes.pop(owner, None)
        if size:
            self.sizes[owner] = size


class _Accounts:
    """Counts the bytes that a server keeps for its clients. Any thread may call its methods."""

    unsent_size = 0
    _unlimited: _Connection | None = None  # the connection whose body may exceed the limit

    def __init__(self, server: Server) -> None:
        self._server = server  # for its limits
        self.bodies = _Account()
        self.spooled = _Account()
        self.unsent: dict[_Connection, bytes] = {}  # blocks in memory, slowest client first
        self._readers: Counter[int] = Counter()  # how many clients need each block, by id(block)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)

    def has_room(self) -> bool:
        """Tell whether the leader may collect more of a body."""
        return self.bodies.total < self._server.max_collected

    def count_body(self, connection: _Connection, size: int) -> None:
        """Note how many bytes of a body are in memory."""
        with self._lock:
            before = self.bodies.total
            self.bodies.set(connection, size)
            if not size and self._unlimited is connection:
                self._unlimited = None
            if self.bodies.total < before:
                self._room.notify()

    def grow_body(self, connection: _Connection, size: int) -> None:
        """Count bytes of a body before a thread reads them; wait until there is room for them.

        Raise HttpException 503 if the memory stays full for body_timeout.
        """
        until = monotonic() + self._server.body_timeout
        with self._lock:
            while not self._has_room_for(connection, size):
                if self._unlimited is None:
                    self._unlimited = connection
                    break
                left = until - monotonic()
                if left <= 0 or connection.lost:
                    raise _Overloaded("request bodies take up too much memory")
                self._room.wait(min(left, _LOOK))
            self.bodies.set(connection, size)
            self._room.notify()  # there may be room for another body

    def count_spooled(self, body: _Body, size: int) -> None:
        """Note that `size` more bytes of a body are in temporary files.

        Beyond the limit, give up on the body that has arrived most slowly, or on `body` if all of
        them have only just begun to arrive. In the latter case, or if `body` is the slowest, raise
        HttpException 503.
        """
        now = monotonic()
        with self._lock:
            body.spooled += size
            self.spooled.set(body, body.spooled)
            while size > 0 and self.spooled.total > self._server.max_spooled:
                begun = [each for each in self.spooled.sizes if not each.complete]
                old = [each for each in begun if now - each.began >= _LEAST_AGE]
                slowest = min(old, key=lambda each: each.size / (now - each.began), default=body)
                self.spooled.set(slowest, 0)
                failure = _Overloaded("request bodies take up too much space in temporary files")
                slowest.give_up(failure)
                if slowest is body:
                    raise failure

    def _has_room_for(self, connection: _Connection, size: int) -> bool:
        return (
            size <= _PIECE
            or self._unlimited is connection
            or self.bodies.total_with(connection, size) <= self._server.max_collected
        )

    def count_unsent(self, connection: _Connection, block: bytes) -> None:
        """Note which block in memory a client still has to read; b"" means none.

        Beyond the limit, disconnect the slowest client, unless only one block is in memory.
        """
        with self._lock:
            self._forget_unsent(connection)
            if block and not connection.lost:
                self.unsent[connection] = block  # at the end, after the blocks of slower clients
                if id(block) not in self._readers:  # several clients may wait for the same block
                    self.unsent_size += len(block)
                self._readers[id(block)] += 1
            while self.unsent_size > self._server.max_unsent and len(self._readers) > 1:
                slowest = next(iter(self.unsent))
                run = slowest.run  # read it now, because the leader may end the run after give_up()
                self._forget_unsent(slowest)
                slowest.give_up()  # so that the system no longer keeps bytes for this client
                slowest.break_off(run)

    def _forget_unsent(self, connection: _Connection) -> None:
        block = self.unsent.pop(connection, None)
        if block is None:
            return
        self._readers[id(block)] -= 1
        if not self._readers[id(block)]:
            del self._readers[id(block)]
            self.unsent_size -= len(block)


# ---- one run of the application ----------------------------------------------
#
# How does a request become the bytes of a response? A run is one call of the application, together
# with everything that belongs to the call. It is a `wsgiref` handler: it calls the application
# (PEP 3333) and frames the response (RFC 9112 section 6), so that the client can tell where the
# response ends:
#
#     status "200 OK", headers [("X", "1")], blocks [b"hi"]
#         ->  b"HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 2\r\n..."
#
# Read Lib/wsgiref/handlers.py alongside this section. A run inherits the methods of BaseHandler in
# that file, and overrides some of them:
#
#     run               is ours: it tells failures of the application from those of the client
#     setup_environ     is ours: it only merges dictionaries
#     start_response    is wsgiref's
#     finish_response   is ours: it leaves a whole response or a file to the leader
#     result_is_file    is wsgiref's
#     sendfile          is ours: it leaves the file to the leader
#     write             is wsgiref's: it makes the head before the first block, and counts bytes
#     send_headers      is ours: it can handle chunks, keep-alive and HEAD
#     _write, _flush    are ours: wsgiref leaves them to its subclasses
#     handle_error      is ours: it can handle HttpExceptions, and heads that have already been sent
#     log_exception     is ours: it writes one log record for each failure
#     close             is wsgiref's
#
# wsgiref checks some rules of PEP 3333 only with assertions, which `python -O` removes. Therefore
# `send_headers` itself checks everything that could break the framing.
#
# The run hands a whole response or a file to the leader as `output`, and the leader sends it. A
# stream is sent block by block by the thread that runs the application. If the application fails
# before the head has been sent, the client gets a 500. If it fails later, all the server can do is
# show the client that the response is incomplete. It leaves out the last chunk or some of the
# bytes. If the response has neither chunks nor a length, it resets the connection instead. A run is
# also the observer of its request; the application finds this observer as
# `environ["webapp.server"]`.

_SLICE = 256 * 1024  # bytes that are sent to one client before the others get their turn


def _sending(
    connection: _Connection,
    blocks: Sequence[bytes],
    file: Any = None,
    offset: int = 0,
    count: int = 0,
) -> Iterator[int]:
    """Send blocks of bytes, then `count` bytes of a file; yield how many bytes each step has sent.

    A step yields 0 if the client must first read bytes that were sent earlier. Raise OSError if
    reading the file fails or if the client is gone; in the latter case, the connection is `lost`.
    """
    for block in blocks:
        view = memoryview(block)
        while view:
            moved = connection.send(view[:_SLICE]) or 0
            view = view[moved:]
            yield moved
    while count:
        sent = connection.send_file(file, offset, min(count, _SLICE))
        if sent == 0:
            raise OSError("the file became shorter while it was being sent")
        offset += sent or 0
        count -= sent or 0
        yield sent or 0
    while not connection.flush():
        yield 0


class _RequestHandler(_Observer, SimpleHandler):
    """One run: it calls the application for a request, and frames the response."""

    # wsgiref sets these attributes, but its type annotations leave them out.
    status: Any
    headers: Any
    headers_class: Any = list
    bytes_sent: int  # bytes of the body that were passed to write()
    environ: _Environ
    logged: _Environ | None = None  # the environ for log records, once it has been made
    body: _Body | None = None
    refusal: HttpException | None = None  # why a malformed request is refused
    file: Any = None  # the file that the leader sends
    output: Iterator[int] = iter(())  # sends the response, unless it is a stream
    block: bytes = b""  # the bytes in memory that the client still has to read
    sent = 0  # bytes of head and body that were sent, not counting the framing of chunks
    started = 0.0  # when the run began; deleted when the access line is written
    cut = False  # True if the response is incomplete, and only a reset can show this
    is_interim = False  # True if the output is a "100 Continue" (RFC 9110 section 15.2.1)
    # `send_headers` sets these: the head of the response, and how the body after it is framed.
    head = b""  # including the empty line at its end
    code = 0
    bodiless = False  # True if no body follows
    chunked = False
    length: int | None = None  # the length of the body, or None if it is not known
    keep_alive = False  # True if another response may follow
    _size: int | None = None  # the size of a body that was complete before its head was made
    _announced = ""  # the Content-Type of a stream before its head is made
    _input: Any = None  # wsgi.input, or the object that closes it

    def __init__(self, connection: _Connection, request: _Head) -> None:
        # super().__init__() is not called, because its streams and environ are not used here.
        server = connection.server
        self.server = server
        self.connection = connection
        self.request = request
        # A fast reader may build up a large reserve of time, because the system's buffer may empty
        # in large steps.
        self.rate = _MinimumRate(server.write_timeout, burst=16)

    def run(self, application: _WSGIApplication) -> None:
        """Run the application. This method never raises an exception."""
        self.started = time.perf_counter()
        try:
            if self.refusal is not None:
                raise copy(self.refusal)
            self.setup_environ()
            if self.request.target != "*":
                self.result = application(self.environ, self.start_response)
            else:  # RFC 9110 section 9.3.7: this asks about the server itself
                self.start_response("204 No Content", [])
                self.result = []
            self.finish_response()
        except BaseException:
            if self.server._alive:  # False in a child process that a handler has forked
                self.handle_error()
        for end in (self.close, getattr(self._input, "close", lambda: None)):
            try:
                end()
            except BaseException:
                self.log_exception(sys.exc_info())
        self._input = None
        self.errors = ()  # the exceptions' frames refer to the run
        if self.logged is not None:  # it is kept until the access line is written
            self.logged.pop("webapp.server", None)  # this refers to the run
            self.logged.pop("wsgi.input", None)  # this also refers to the run

    def setup_environ(self) -> None:
        body = self.body
        self._input = BytesIO() if body is None else body.open(self)
        self.environ = {
            **self.server.base_environ,
            **self.request.environ,
            "REMOTE_ADDR": self.connection.address,
            "wsgi.input": self._input,
            # In a program without a console, sys.stderr is None.
            "wsgi.errors": sys.stderr or io.StringIO(),
            "webapp.server": self,
        }
        if self.connection.port is not None:
            self.environ["REMOTE_PORT"] = str(self.connection.port)
        if certificate := self.connection.client_certificate():
            self.environ["SSL_CLIENT_CERT"] = certificate  # Apache's mod_ssl uses the same name
        self.logged = self.environ  # close() deletes self.environ
        if body is None or not self.request.chunked:
            return
        if body.complete:  # RFC 9112 section 7.1.3
            del self.environ["HTTP_TRANSFER_ENCODING"]
            self.environ["CONTENT_LENGTH"] = str(body.size)
        elif not isinstance(self.server.app, WebApp):
            self._input = _spool_body(self.environ)

    def finish_response(self) -> None:
        """Leave a whole response or a file to the leader, or send a stream."""
        result = self.result
        if isinstance(result, (list, tuple)) and not self.headers_sent:
            self._write_whole(b"".join(result))
        elif self.headers_sent or not self.result_is_file() or not self.sendfile():
            self._write_stream(result)

    def _write_whole(self, data: bytes) -> None:
        self._size = len(data)
        self.write(data)

    def _write_stream(self, blocks: Iterable[bytes]) -> None:
        self._take_slot()
        for block in blocks:
            self.write(block)
            # PEP 3333: a file is sent only up to its Content-Length.
            full = self.length is not None and self.bytes_sent >= self.length
            # A response to HEAD needs only the first block of a stream, which may be endless.
            if self.bodiless or (full and self.result_is_file()):
                return
        if not self.headers_sent:
            self._write_whole(b"")
        elif self.length is not None and self.bytes_sent < self.length and not self.bodiless:
            raise RuntimeError(f"the response has only {self.bytes_sent} of {self.length} bytes")
        elif self.chunked:
            self.connection.send_now([b"0\r\n\r\n"], self.rate, self.block)

    def sendfile(self) -> bool:
        """Leave a plain file to the leader, which lets the system send it.

        Return False for any other file.
        """
        file = cast(Any, self.result).filelike
        # For example, the descriptor of a gzip file yields the compressed bytes, not the content.
        if not isinstance(getattr(file, "raw", file), io.FileIO):
            return False
        facts = os.fstat(file.fileno())
        size = facts.st_size - file.tell() if stat.S_ISREG(facts.st_mode) else 0
        if size <= 0:
            return False
        try:
            # This is a duplicate, because the original is closed before the leader sends the file.
            self.file = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: SIM115
        except OSError:  # no descriptor is free, so this thread sends the file
            return False
        self.connection.files.add(self.file)
        self._size = size
        self.send_headers()
        count = 0 if self.bodiless else self.length or 0
        start = facts.st_size - size
        self.output = _sending(self.connection, [self.head], self.file, start, count)
        return True

    def send_headers(self) -> None:
        """Frame the response and make its head, which is sent together with the bytes that follow.

        Raise ValueError for a status or header fields that would break the framing, and
        HttpException 503 for a stream if no slot is free.
        """
        if self._size is None:
            if not self.bytes_sent:  # PEP 3333: an empty block does not cause the head to be sent
                return
            self._take_slot()
        own: dict[str, str] = {}
        lines = [f"HTTP/1.1 {self.status}"]
        for name, value in self.headers:
            key = name.lower()
            own[key] = value
            if key != "content-length":
                lines.append(f"{name}: {value}")
        self.code = int(self.status[:3])
        if self.code < 200 or "connection" in own or "transfer-encoding" in own:
            raise ValueError("only the server may send 1xx, Connection and Transfer-Encoding")
        self.bodiless = self.request.method == "HEAD" or self.code in _BODILESS
        self.length = self._find_length(own.get("content-length"))
        self.chunked = self.length is None and not self.bodiless and self.request.modern
        is_read = self.body is None or self.body.complete
        self.keep_alive = (
            self.request.keep_alive
            and is_read
            and not self.ends_with_connection()
            and (not self.server._stopping or self.connection.receive_pipelined())
        )
        self._add_own_fields(lines, own)
        text = "\r\n".join([*lines, "", ""])
        # A line break in a name or value would let a client add further header fields.
        if not text.count("\n") == text.count("\r") == len(lines) + 1 or "\0" in text:
            raise ValueError("the status or a header field contains a control character")
        self.head = text.encode("latin-1")
        self.headers_sent = True

    def _find_length(self, announced: str | None) -> int | None:
        """Return the Content-Length of the response, or None (RFC 9110 section 8.6)."""
        size = self._size
        if self.code == 205:  # otherwise, a client would read a body: section 15.3.6
            return 0
        if announced is None:
            # For HEAD, the application may have left out the body, so its length is not known.
            unknown = self.code in (204, 304) or (self.bodiless and not size)
            return None if unknown else size
        if not _CONTENT_LENGTH.fullmatch(announced):
            raise ValueError("malformed Content-Length")
        length = int(announced)
        is_wrong = length < self.bytes_sent if size is None else length != size
        if is_wrong and not (self.bodiless or self.result_is_file()):
            raise ValueError(
                f"the response has {self.bytes_sent} bytes, but its Content-Length is {length}"
            )
        return length

    def _add_own_fields(self, lines: list[str], given: Collection[str]) -> None:
        """Add the header fields that the server itself sends."""
        if self.length is not None and self.code != 204:
            lines.append(f"Content-Length: {self.length}")
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
        if "server" not in given:
            lines.append("Server: webapp")
        if not self.keep_alive:
            lines.append("Connection: close")
        elif not self.request.modern:
            lines.append("Connection: keep-alive")
        if "date" not in given:
            lines.append(f"Date: {_http_date(int(time.time()))}")

    def _write(self, data: bytes) -> None:
        if self.bodiless:
            data = b""
        elif self.length is not None and self.bytes_sent > self.length:
            if not self.result_is_file():
                raise RuntimeError(
                    f"the response has at least {self.bytes_sent} bytes, but its Content-Length is "
                    f"{self.length}"
                )
            data = data[: self.length - self.bytes_sent]
        self.block = data

    def _flush(self) -> None:
        """Leave a whole response to the leader, or send a block of a stream."""
        head = b"" if self.sent else self.head
        data = self.block
        pieces = [head, data]
        if self.chunked and data:
            pieces = [head + b"%x\r\n" % len(data), data, b"\r\n"]
        # A large block is not copied, because many slow readers may be waiting for the same block.
        if len(data) <= _PIECE:
            self.block = b"".join(pieces)
            pieces = [self.block]
        if self._size is not None:
            self.output = _sending(self.connection, pieces)
            return
        self.connection.send_now(pieces, self.rate, self.block)
        self.sent += len(head) + len(data)

    # The application calls these methods of an observer.

    def begin_stream(self, content_type: str) -> None:
        """Take a slot for a stream; raise HttpException 503 if none is free."""
        self._announced = content_type
        self._take_slot()

    def _take_slot(self) -> None:
        has_events = self.has_events()
        slot = _EVENTS if has_events else _STREAMS
        self.connection.pool.take_slot(self.connection, slot)
        if has_events:
            self.connection.pool.leave_lead()
        else:  # the thread may have to wait later, though not now
            self.connection.pool.check_successor()

    def has_events(self) -> bool:
        """Tell whether the response is a stream of events, which goes on until somebody ends it."""
        # Another thread may call this while the run's own thread is closing the run.
        fields = self.headers or [("Content-Type", self._announced)]
        return self._size is None and any(
            name.lower() == "content-type" and value.lower().startswith(_EVENT_STREAM)
            for name, value in fields
        )

    def ends_with_connection(self) -> bool:
        """Tell whether only a reset can show the client that the response is incomplete.

        If the response has chunks or a length, the client notices missing bytes anyway. The result
        is True until the head is made, because the run's own thread may be making the head at this
        moment.
        """
        return not (self.chunked or self.bodiless or self.length is not None)

    def keep_body(self, size: int) -> int:
        return size if self.body is None else self.body.keep(size)

    def give_back_body(self, size: int) -> None:
        if self.body is not None:
            self.body.give_back(size)

    def count_spooled(self, size: int, files: int = 0) -> None:
        # In a child process that a handler has forked, the locks must not be used.
        if self.server._alive and self.body is not None:
            if files:
                self.connection.pool.count_files(files)
                self.body.files += files
            self.server._accounts.count_spooled(self.body, size)

    # Handling failures, and ending a run.

    def handle_error(self) -> None:
        """Answer a failed request, or abandon the response if its head has already been sent."""
        error = sys.exc_info()[1]
        self.log_exception(sys.exc_info())
        if self.headers_sent or self.connection.lost:
            self.cut = self.ends_with_connection()
            self.keep_alive = False
            return
        if isinstance(error, HttpException):
            try:
                self._answer_error(error)
                return
            except Exception:  # its status or one of its header fields cannot be sent
                self.log_exception(sys.exc_info())
        self._answer_error(HttpException(500))

    def _answer_error(self, error: HttpException) -> None:
        line = _STATUS_LINES[error.status_code]
        # Otherwise, a 414 or 501 might be cached: RFC 9110 section 15.1.
        own = {"Content-Type": _TEXT, "Cache-Control": "no-store"}
        self.start_response(line, [*{**own, **error.headers}.items()], sys.exc_info())
        self._write_whole(line.encode())

    def log_exception(self, exc_info: Any) -> None:
        """Log an exception of the application.

        Nothing is logged if the exception has already been logged, or if it was caused by the
        client or by the server's shutdown. (Shutting down closes sockets and results while threads
        are still using them.)
        """
        error = exc_info[1]
        refused = isinstance(error, HttpException) and (
            self.refusal is not None or error.status_code < 500
        )
        # If the client has left, one of these errors is raised in the application, which may then
        # raise another one.
        chain = (error, error.__cause__, error.__context__)
        left = self.connection.lost and any(
            isinstance(each, (OSError, HttpException)) for each in chain
        )
        if not (refused or left or self.connection.pool.ended or self.has_noted(error)):
            # SystemExit normally ends a program; if a handler raises it, the server keeps running.
            hint = "; to stop the server, call its stop()" if isinstance(error, SystemExit) else ""
            message = f"{self.describe()} failed{hint}"
            _report(self.logged, logging.ERROR, message, error)

    def free_body(self) -> None:
        """Free the memory of the body, which nobody reads any more."""
        if self.body is not None and self.body.files:  # middleware has not closed the response
            self.count_spooled(-self.body.spooled, -self.body.files)
        self.body = None
        self.server._accounts.count_body(self.connection, 0)

    def describe(self) -> str:
        return f"{self.request.method} {_printable(self.request.target)}"

    def note_access(self) -> None:
        if self.server.quiet:
            return
        # During shutdown, two threads may end the same run; `pop` is atomic, so only one logs it.
        started = vars(self).pop("started", None)
        if started is None:
            return
        reason = self.reason or str(self.refusal or "")
        facts = {
            "remote_address": self.connection.address or "-",
            "method": self.request.method,
            "target": _printable(self.request.target),
            "status": self.code,
            "size": max(0, self.sent - len(self.head)),  # bytes of the body that were sent
            "milliseconds": (time.perf_counter() - started) * 1000,
            "reason": _printable(reason) if reason else None,
        }
        self.connection.log_writer.enqueue(_log_access, self.logged, facts)


# ---- a connection ------------------------------------------------------------
#
# Who may use a client's socket, and what happens to the connection next? A connection is always in
# one stage, and each stage has one owner; nobody else may use the socket. The owner is the leader
# (the thread that waits for all clients at once) or a thread that answers a request. Other threads
# may only call `give_up` or `shut_down`, and the owner notices this at its next wait or operation.
# When the server shuts down, it closes all sockets, whoever owns them. Sockets never block.
# `_STAGES`, below the classes, says which method is called next in each stage. There is a picture
# of the stages in examples/course/pictures/connection.svg.
#
# stage      owner   next stage
#
# HANDSHAKE  leader  IDLE, LINGERING, CLOSED
# IDLE       leader  HEAD, SENDING, BODY, ANSWERING, CLOSED
# HEAD       leader  SENDING, BODY, ANSWERING
# BODY       leader  ANSWERING
# ANSWERING  thread  SENDING
# SENDING    leader  IDLE, BODY, LINGERING, CLOSED
# LINGERING  leader  CLOSED
#
# Usually the system accepts a whole response at once, and the connection skips SENDING. A "100
# Continue" is sent in the same way, between the head and the BODY stage. If the client leaves, the
# connection becomes CLOSED, whatever stage it was in. LINGERING is necessary because closing a
# socket that has unread bytes would reset the connection, and the client could lose a response that
# is still on its way.

_HANDSHAKE, _IDLE, _HEAD, _BODY = "handshake", "idle", "head", "body"
_ANSWERING, _SENDING, _LINGERING, _CLOSED = "answering", "sending", "lingering", "closed"

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_GRACE = 0.2  # seconds that a stopping server waits for streams to end, or for the next request
_MOST_PIPELINED = 100  # requests that a stopping server still answers on one connection
_SHORT_WAIT = 1  # seconds that it waits for a client to send a request or read its response
_NEVER = float("inf")


class _Connection:
    # Only the leader sets the next five attributes, and `entered`.
    stage = _IDLE
    deadline = _NEVER  # the time by which it must leave its stage
    spared_until = 0.0  # the end of its extra time; 0.0 if it has none
    selected = 0  # the events for which the leader's selector waits
    slot = _ANSWERS  # set under the lock of the thread pool
    # Only the owner sets `awaited` and `buffer`.
    awaited = _READ  # the event that the last operation has to wait for
    buffer = b""  # bytes that have arrived but have not been used yet
    ended = False  # with TLS, True if the client has closed its side
    lost = False  # True if the client has gone away or was disconnected
    pipelined = 0  # how many requests the owner has answered since the server began to stop
    run: Any = None  # the _RequestHandler of the current request, until it ends

    def __init__(self, server: Server, sock: socket.socket, address: Any) -> None:
        self.server = server
        self.pool = server._thread_pool
        self.selector = server._selector
        self.connections = server._connections
        self.files = server._files
        self.log_writer = server._log_writer
        self.socket = sock
        # The client of a Unix socket has no address and no port.
        address, self.port = address[:2] if isinstance(address, tuple) else ("", None)
        # A dual-stack socket reports IPv4 addresses in mapped form: RFC 4291 section 2.5.5.2.
        self.address = address.removeprefix("::ffff:") if "." in address else address
        self.entered = server._now  # when it entered its stage

    def receive(self, size: int) -> bytes | None:
        """Receive up to about `size` bytes; return None if none have arrived.

        The result is b"" if the client has closed its side. Raise OSError if the client is gone.
        """
        try:
            return self.socket.recv(size)
        except BlockingIOError:
            self.awaited = _READ
        except OSError:
            self.lost = True
            raise
        return None

    receive_raw = receive  # with TLS, this receives bytes without decrypting them

    def send(self, data: bytes | memoryview) -> int | None:
        """Send some bytes; return how many, or None if the client must first read earlier bytes."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            self.awaited = _WRITE
        except OSError:
            self.lost = True
            raise
        return None

    def send_file(self, file: Any, offset: int, count: int) -> int | None:
        """Send some of `count` bytes of a file, as `send` does; return 0 at the end of the file."""
        if sys.platform == "win32":
            return self._send_read(file, offset, count)
        try:
            return os.sendfile(self.socket.fileno(), file.fileno(), offset, count)
        except BlockingIOError:
            self.awaited = _WRITE
            return None
        except (AttributeError, OSError):
            # sendfile() is missing or has failed. If it has failed, read() or send() shows why.
            return self._send_read(file, offset, count)

    def _send_read(self, file: Any, offset: int, count: int) -> int | None:
        file.seek(offset)
        data = file.read(min(count, _PIECE))
        return self.send(data) if data else 0

    def flush(self) -> bool:
        """Tell whether all bytes that `send` has accepted have been passed to the system."""
        return True

    def client_certificate(self) -> str:
        """Return the certificate of the client in PEM format, or "" if it has not sent one."""
        return ""

    def shut_down(self) -> None:
        """Make all further socket operations of the owner fail."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def end_output(self) -> None:
        """Tell the client that nothing more will follow."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def give_up(self) -> None:
        """Make the owner give up at its next wait, and close the connection with a reset.

        If a body has neither chunks nor a length, only a reset shows that it is incomplete.
        """
        self.lost = True
        at_once = struct.pack("ii", 1, 0)  # linger for 0 seconds; Windows reads only the first half
        with suppress(OSError):  # the client has already reset the connection
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)

    # The stages, in the order in which a request goes through them.

    def enter(self, stage: str, seconds: float) -> None:
        """Enter a stage for at most `seconds`, or give the current stage that much time again."""
        server = self.server
        # In a handshake, the client gets the full time again for each message.
        if stage != self.stage or stage == _HANDSHAKE:
            self.spared_until = 0.0
            self.entered = server._now
        self.stage = stage
        self.deadline = server._now + seconds
        self.connections.pop(self, None)
        self.connections[self] = None  # at the end, because it has made progress

    def is_spared(self) -> bool:
        """Tell whether bytes that have arrived may still be used, although the deadline has passed.

        This is limited to _SPARED seconds, because a client may keep sending.
        """
        if not self.spared_until:
            self.spared_until = self.server._now + _SPARED
        return self.stage != _LINGERING and self.server._now < self.spared_until

    def select(self, events: int) -> None:
        """Change the events that the leader's selector waits for; 0 means none."""
        if events != self.selected:
            if self.selected:
                self.selector.unregister(self.socket)
            if events:
                self.selector.register(self.socket, events, self)
            self.selected = events

    def begin(self) -> None:
        self.socket.setblocking(False)
        self.enter(_IDLE, self.server.idle_timeout)
        self.read_head()  # the request has often already arrived

    def read_head(self) -> None:
        if self.receive_more(_LINES_AT_ONCE):
            self.parse()

    def receive_more(self, size: int) -> bool:
        """Receive some bytes; return False if nothing has arrived."""
        try:
            data = self.receive(size)
        except OSError:
            data = b""
        if data:
            self.buffer += data
        elif data is None:
            self.select(self.awaited)
        else:
            if self.stage == _BODY or self.buffer:
                self.report(logging.INFO, f"{self.address} went away in the middle of a request")
            self.drop()
        return bool(data)

    def parse(self) -> None:
        """Parse the head of a request if it is complete, and go on with the body."""
        try:
            data = self.buffer
            # RFC 9112 section 2.2: some old clients send an empty line after a body.
            if data.startswith(b"\r\n"):
                self.buffer = data = _EMPTY_LINES.sub(b"", data, count=1)
            end = data.find(b"\r\n\r\n")
            if end < 0:
                # The empty line at the end of the head may have only partly arrived.
                begun = data.removesuffix(b"\r").removesuffix(b"\r\n")
                _check_lines(begun)
                if begun and self.stage == _IDLE:
                    self.enter(_HEAD, self.server.header_timeout)
                self.select(_READ)
                return
            lines = data[:end]
            if lines != self.server._last_data:  # polling and health checks repeat the same head
                parsed = _parse_head(lines)
                self.server._check_host(parsed.environ.get("HTTP_HOST"))
                self.server._last_head = parsed
                self.server._last_data = lines
            head = self.server._last_head
            self.buffer = data[end + 4 :]
        except HttpException as refusal:
            self.refuse(refusal)
            return
        self.run = run = _RequestHandler(self, head)
        if head.length or head.chunked:
            run.body = _Body(self, head)
            self.collect()
        else:
            self.let_answer()

    def refuse(self, refusal: HttpException) -> None:
        """Answer a malformed request."""
        line = self.buffer[:_MAX_REQUEST_LINE].partition(b"\r\n")[0].decode("latin-1")
        match = _REQUEST_LINE.fullmatch(line)
        method, target = (match[1], match[2]) if match else ("-", line[:200].replace(" ", "\\x20"))
        head = _Head(method, target if line[:1] != "\x16" else "-", False)
        self.run = _RequestHandler(self, head)
        self.run.refusal = copy(refusal)  # without the traceback, which would keep frames alive
        self.let_answer()

    def read_body(self) -> None:
        body = self.run.body
        if not self.server._accounts.has_room():
            self.let_answer()
        elif self.receive_more(body.wanted):
            body.rate.left = self.deadline - self.server._now
            self.collect()

    def collect(self) -> None:
        """Collect the bytes of a body that have arrived so far.

        If the body is complete or too large to be collected, let a thread answer the request.
        """
        run = self.run
        body = run.body
        self.buffer = body.feed(self.buffer)
        self.server._accounts.count_body(self, body.size)
        if (
            body.complete
            or body.failure
            or body.size + body.left > _COLLECTED
            or not self.server._accounts.has_room()
        ):
            self.let_answer()
        elif body.expected and not body.size:
            body.expected = False
            run.output = _sending(self, [_CONTINUE])  # the run itself has not begun yet
            run.is_interim = True
            self.send_more()
        else:
            self.enter(_BODY, body.rate.left)
            self.select(_READ)

    def let_answer(self) -> None:
        """Have a thread answer the request."""
        self.stage, self.deadline = _ANSWERING, _NEVER
        self.pool.add(self)

    # The thread that answers a request calls these methods.

    def send_now(self, pieces: list[bytes], rate: _MinimumRate, block: bytes = b"") -> None:
        """Send all pieces (see `wait`); raise OSError if the client is gone or too slow."""
        for moved in _sending(self, pieces):
            if not moved and not self.wait(rate, block):
                self.lost = True
                raise TimeoutError("the client was too slow")
            rate.moved(moved)

    def wait(self, rate: _MinimumRate, block: bytes = b"") -> bool:
        """Wait for the client to send or read bytes; return False if it is too slow.

        `block` is counted while the thread waits, because it stays in memory until the client has
        read it. Raise ConnectionError if another thread has given up on the client, and
        HttpException 503 if no slot is free.
        """
        started = monotonic()
        self.pool.take_slot(self, _STREAMS)  # an upload already has a slot of its own
        self.pool.leave_lead()
        self.server._accounts.count_unsent(self, block)
        until = started + max(rate.left, 0.001)
        ready = is_over = False
        with getattr(selectors, "PollSelector", selectors.SelectSelector)() as selector:
            try:
                selector.register(self.socket, self.awaited)
            except ValueError:  # the server has stopped, and has closed the socket
                raise ConnectionError("the server has stopped") from None
            # Look once more after the time is up, because the thread may have been suspended.
            while not (ready or is_over or self.lost):
                left = 0.0 if rate.ended else until - monotonic()
                is_over = left <= 0
                ready = bool(selector.select(max(0, min(left, _LOOK))))
        self.server._accounts.count_unsent(self, b"")
        rate.moved(0, monotonic() - started)
        if self.lost:
            raise ConnectionError("the client has been disconnected")
        return ready

    def receive_pipelined(self) -> bool:
        """During shutdown, receive part of the next request; tell whether to answer it."""
        self.pipelined += 1
        with suppress(OSError):
            self.buffer += self.receive(_LINES_AT_ONCE) or b""
        return bool(self.buffer) and self.pipelined < _MOST_PIPELINED

    # Sending a response, and what follows it.

    def begin_to_send(self) -> None:
        """Send a small response; a large one has to wait until all small ones have been sent."""
        run = self.run
        if len(run.block) <= _PIECE and run.file is None:
            self.send_more()
            return
        self.server._accounts.count_unsent(self, run.block)
        self.enter(_SENDING, run.rate.left)
        self.server._note_ready(self)

    def send_more(self) -> None:
        """Send part of a response; when all of it has been sent, go on with what follows."""
        run, total = self.run, 0
        try:
            for moved in run.output:
                run.sent += moved
                total += moved
                if not moved or total >= _SLICE:
                    if self.stage == _SENDING:
                        run.rate.left = self.deadline - self.server._now
                    run.rate.moved(total)
                    self.server._accounts.count_unsent(self, run.block)
                    self.enter(_SENDING, run.rate.left)
                    self.select(_WRITE if moved else self.awaited)
                    return
        except OSError as error:
            if not self.lost:
                run.keep_alive = False
                self.report(logging.ERROR, f"{run.describe()}: {error}")
        self.finish()

    def finish(self) -> None:
        """Go on after a response has been sent."""
        run = self.run
        if run.is_interim and not self.lost:  # this was only the "100 Continue"
            run.is_interim = False
            run.sent = 0
            self.collect()
            return
        if self.lost:
            self.report(logging.INFO, f"{self.address} went away before the response was complete")
        self.end_run()
        nothing_follows = self.ended and not self.buffer
        if self.lost or run.cut:
            if run.ends_with_connection():
                self.give_up()
            self.drop()
        elif not run.keep_alive or nothing_follows:
            self.linger()
        else:
            self.enter(_IDLE, self.server.idle_timeout)
            if self.buffer:
                self.parse()
            else:
                self.select(_READ)

    def linger(self) -> None:
        """Send nothing more, and discard what the client sends until it disconnects."""
        self.buffer = b""
        self.enter(_LINGERING, self.server.body_timeout * 3)  # the client may still be uploading
        self.end_output()
        self.select(_READ)

    def throw_away(self) -> None:
        if self.receive_raw(_PIECE) == b"":
            self.drop()

    def report(self, level: int, message: str, error: BaseException | None = None) -> None:
        """Log something about the current request, or about the client."""
        self.log_writer.enqueue(_report, getattr(self.run, "logged", None), level, message, error)

    def end_run(self) -> None:
        """Write the access line of a request that has ended or failed, and free its memory."""
        if self in self.server._accounts.unsent:
            self.server._accounts.count_unsent(self, b"")
        run, self.run = self.run, None
        if run is None:
            return
        run.note_access()
        if run.file is not None:
            self.files.discard(run.file)
            run.file.close()
        if run.body is not None:
            run.free_body()

    def take_step(self) -> None:
        _STAGES[self.stage].ready(self)

    def time_out(self) -> None:
        _STAGES[self.stage].late(self)

    def do_nothing(self) -> None:
        pass

    def ignore(self) -> None:
        """Stop reading; the socket belongs to the thread that answers the request."""
        self.select(0)

    def fail_head(self) -> None:
        self.refuse(HttpException(408, "the header arrived too slowly"))

    def fail_body(self) -> None:
        self.run.body.failure = HttpException(408, "the body arrived too slowly")
        self.let_answer()

    def abandon(self) -> None:
        """Abandon a response because the client is not reading it."""
        self.give_up()  # otherwise, the system would keep trying to send it
        self.finish()

    def hang_up(self) -> None:
        self.end_output()
        self.drop()

    def stay_shortly(self) -> None:
        """Stay open only a moment longer, in case another request is already on its way."""
        self.deadline = min(self.deadline, self.entered + _GRACE)

    def hasten(self) -> None:
        """Give a client only a moment longer to send its request or to read its response."""
        self.deadline = min(self.deadline, self.server._now + _SHORT_WAIT)

    def keeps_stop(self) -> bool:
        """Tell whether a stopping server waits for the connection."""
        # It does not wait for streams of events once they may end.
        is_answered = self.stage in (_ANSWERING, _SENDING)
        return not (is_answered and self.server._events_may_end and self.run.has_events())

    def end_events(self) -> None:
        if not self.keeps_stop():
            self.break_off(self.run)

    # Ending responses and connections.

    def break_off(self, run: _RequestHandler) -> None:
        """End a response so that the client can tell that it is incomplete.

        A response that ends with its connection would look complete after a shutdown.
        """
        if run.ends_with_connection():
            self.give_up()  # its thread notices this in `wait`
        else:
            self.shut_down()

    def end_answer(self) -> None:
        """Make a thread end its response."""
        run = self.run
        if run is None:  # the run has just ended
            return
        self.break_off(run)
        if self.lost:
            self.socket.close()  # otherwise, the reset would have to wait for a silent thread
        if self.slot in (_STREAMS, _EVENTS):
            run.note_access()
            self.pool.close_result(run)

    def drop(self) -> None:
        """Close a connection that does not belong to a thread."""
        self.select(0)
        self.connections.pop(self, None)
        self.close()

    def close(self) -> None:
        if self.run is not None and self.run.cut:
            self.give_up()
        self.stage = _CLOSED
        self.end_run()
        self.socket.close()


_Queue = dict[_Connection, None]  # connections in the order in which they were added
_Step = Callable[[Any], None]  # a method of a connection


class _Stage(NamedTuple):
    ready: _Step  # called when the socket is ready
    late: _Step  # called when the deadline has passed
    stop: _Step  # called in each round while the server stops


# TLS adds the handshake to this table. The course repeats this table and draws part of it.
_STAGES = {
    _IDLE: _Stage(_Connection.read_head, _Connection.hang_up, _Connection.stay_shortly),
    _HEAD: _Stage(_Connection.read_head, _Connection.fail_head, _Connection.hasten),
    _BODY: _Stage(_Connection.read_body, _Connection.fail_body, _Connection.hasten),
    _ANSWERING: _Stage(_Connection.ignore, _Connection.do_nothing, _Connection.end_events),
    _SENDING: _Stage(_Connection.send_more, _Connection.abandon, _Connection.end_events),
    _LINGERING: _Stage(_Connection.throw_away, _Connection.hang_up, _Connection.hasten),
    _CLOSED: _Stage(_Connection.do_nothing, _Connection.do_nothing, _Connection.do_nothing),
}


# ---- TLS ---------------------------------------------------------------------
#
# What is different about an encrypted connection? A `_SecureConnection` begins with an extra stage,
# the handshake, and decrypts what it receives:
#
#     the socket  ->  _arrived  ->  OpenSSL  ->  decrypted bytes of a head or a body
#     the socket  <-  _leaving  <-  OpenSSL  <-  bytes of a response
#
# OpenSSL works in memory and never uses the socket itself. If it did, a client could keep it busy
# by sending more and more post-handshake messages (RFC 8446 section 4.6). Instead, each step gives
# OpenSSL a few bytes, and takes all decrypted bytes from it. All other bytes stay in the socket,
# where the selector sees them. On a first reading, you can skip this section.

# The smallest and largest number of encrypted bytes in one step. For each connection, OpenSSL keeps
# as much memory as the largest step so far has needed.
_LEAST_STEP, _MOST_STEP = 2 * 1024, 16 * 1024
# The maximum size of a client's first message, in bytes. Before the whole message has arrived,
# OpenSSL allocates as much memory as the header of the message announces, up to 128 KiB.
_MAX_HELLO = 16 * 1024
# A server asks for a second ClientHello by sending these bytes (RFC 8446 section 4.1.3).
_HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
_PLAIN_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=UTF-8\r\n"
    b"Cache-Control: no-store\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
    b"400 Bad Request: this port speaks https\n"
)


class _PlainHTTP(Exception):
    """Raised when a client speaks plain HTTP to a TLS port."""


class _BadRecord(OSError):
    """Raised when a client's first bytes are not TLS, or announce a message that is too long."""

    reason = "bad record"  # an ssl.SSLError has this attribute, too


class _SecureConnection(_Connection):
    """A connection over TLS."""

    _leaving = b""  # encrypted bytes on their way to the socket
    # How many bytes the next step may receive. This grows with the number of bytes that the last
    # step decrypted. Post-handshake messages and tiny records, which cause the most work for their
    # size, are therefore received in small steps.
    _step = 0
    # The remaining attributes are for the handshake.
    _is_complete = False
    _records = b""  # bytes that have arrived but are not a complete record yet
    _message = b""  # the first four bytes of a ClientHello, which are its type and length

    def __init__(self, server: Server, sock: socket.socket, address: Any) -> None:
        import ssl

        super().__init__(server, sock, address)
        self._arrived = ssl.MemoryBIO()  # bytes that OpenSSL is going to decrypt
        self._encrypted = ssl.MemoryBIO()
        self._tls = cast(ssl.SSLContext, server._ssl_context).wrap_bio(
            self._arrived, self._encrypted, server_side=True
        )

    def begin(self) -> None:
        self.socket.setblocking(False)
        self.enter(_HANDSHAKE, self.server.header_timeout)
        self.select(_READ)  # unlike a request, a handshake is slow, so it waits for its turn

    def shake_hands(self) -> None:
        """Take a step of the handshake. After the last step, a request may already have arrived."""
        try:
            has_bytes = self.receive_more(_LINES_AT_ONCE)
        except _PlainHTTP:
            self.report(logging.INFO, f"{self.address} speaks plain HTTP to a TLS port")
            self._leaving = _PLAIN_HTTP_ANSWER
            self.linger()
            return
        if self.stage == _CLOSED:
            return
        if self._is_complete:
            self.enter(_IDLE, self.server.idle_timeout)
        if has_bytes:
            self.parse()

    def receive(self, size: int) -> bytes | None:
        """Receive bytes as `_Connection.receive` does, or take a step of the handshake.

        Also raise OSError if the client violates the TLS protocol.
        """
        if self.ended:
            return b""
        if not self.flush():  # nothing is received from a client that does not read
            return None
        data = self.receive_raw(max(min(size, self._step), _LEAST_STEP))
        if not data:
            return data
        try:
            decrypted = self._decrypt(data if self._is_complete else self._take_records(data))
        except OSError as error:
            self.flush()  # this tells the client the reason
            self.lost = True
            # The client distrusts our certificate, or does not speak TLS. It never sends a request,
            # so nothing else would show up in the log.
            if self.stage != _ANSWERING and getattr(error, "reason", None):
                self.report(logging.INFO, f"{self.address}: TLS failed: {error}")
            raise
        self._step = min(2 * len(decrypted), _MOST_STEP)
        if self.flush():  # otherwise, the client must first read the rest of the handshake
            self.awaited = _READ
        return decrypted or (b"" if self.ended else None)

    def _take_records(self, data: bytes) -> bytes:
        """Take the handshake records one at a time, and return the bytes that follow them."""
        import ssl

        self._records += data
        while not self._is_complete and (record := self._take_record()):
            self._check_length(record)
            self._arrived.write(record)
            with suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                self._is_complete = True
            answer = self._encrypted.read()
            if answer:
                self._leaving += answer
                # The client gets the full time for its next message, even if this one had to wait.
                self.enter(_HANDSHAKE, self.server.header_timeout)
            if _HELLO_RETRY in answer:
                self._message = b""  # because the next message is a ClientHello, too
        if not self._is_complete:
            return b""
        behind, self._records = self._records, b""
        return behind

    def _take_record(self) -> bytes:
        """Return the next record (RFC 8446 section 5.1), or b"" if it has not arrived completely.

        Raise _PlainHTTP if the bytes could be the beginning of a request, and _BadRecord if they
        are not a record.
        """
        begun = self._records
        if begun[:1].isalpha() and not self._message:
            raise _PlainHTTP
        # A record begins with its type (20 to 23) and the TLS version (3, followed by any byte).
        if begun and not (20 <= begun[0] <= 23 and begun[1:2] in (b"", b"\x03")):
            raise _BadRecord("the client does not speak TLS")
        size = 5 + int.from_bytes(begun[3:5], "big")
        if size > 5 + _MAX_HELLO + 256:
            raise _BadRecord("a TLS record is too long")
        if len(begun) < size:
            return b""
        self._records = begun[size:]
        return begun[:size]

    def _check_length(self, record: bytes) -> None:
        """Raise _BadRecord for a ClientHello that is too long (RFC 8446 section 4)."""
        if record[0] == 22:  # a handshake
            self._message += record[5 : 9 - len(self._message)]
        announced = int.from_bytes(self._message[1:4], "big")
        if len(self._message) == 4 and self._message[0] == 1 and announced > _MAX_HELLO:
            raise _BadRecord(f"a ClientHello of {announced} bytes is too long")

    def _decrypt(self, data: bytes) -> bytes:
        """Decrypt the bytes, together with those that arrived earlier, and return the result."""
        import ssl

        self._arrived.write(data)
        pieces: list[bytes] = []
        # Take everything, because the selector does not see bytes that are inside OpenSSL.
        with suppress(ssl.SSLWantReadError):
            while self._arrived.pending and not self.ended:
                pieces.append(self._tls.read(2 * _MOST_STEP))
                self.ended = not pieces[-1]
        return b"".join(pieces)

    def send(self, data: bytes | memoryview) -> int | None:
        """Encrypt and send some of the bytes, after all earlier ones. `flush` sends the rest."""
        taken = 0
        while taken < len(data) and self.flush():
            try:
                taken += self._tls.write(data[taken : taken + _MOST_STEP])
            except OSError:
                self.lost = True
                raise
        return taken or None

    receive_raw = _Connection.receive  # because `receive` decrypts here
    send_file = _Connection._send_read

    def flush(self) -> bool:
        """Send encrypted bytes, and tell whether all of them were sent."""
        self._leaving += self._encrypted.read()
        while self._leaving:
            sent = super().send(self._leaving)
            if sent is None:
                return False
            self._leaving = self._leaving[sent:]
        return True

    def client_certificate(self) -> str:
        """Return the certificate of the client in PEM format, or "" if it has not sent one."""
        import ssl

        certificate = self._tls.getpeercert(True)
        return ssl.DER_cert_to_PEM_cert(certificate) if certificate else ""

    def end_output(self) -> None:
        """Tell the client that nothing more follows (RFC 9112 section 9.8)."""
        with suppress(OSError):
            self._tls.unwrap()  # this fails, because the client has not answered yet
        with suppress(OSError):
            self.flush()
        super().end_output()


_STAGES[_HANDSHAKE] = _Stage(_SecureConnection.shake_hands, _Connection.drop, _Connection.hasten)


# ---- the thread pool ---------------------------------------------------------
#
# Which thread does what? The pattern is Leader/Followers (Schmidt et al., 2000): one of many
# threads waits for all clients. Each thread has one of the following roles, or rests until
# `_find_role` finds a role for it:
#
# role     what it does                                when it ends
#
# leader   It waits for all clients (`Server._round`)  When the lead is handed over, either by the
#          and answers requests between two rounds.    watch, or by `leave_lead` before the thread
#                                                      has to wait.
# helper   It answers requests that the leader         When no such requests are left.
#          leaves to helpers.
# watch    It hands over the lead if a response        When the server stops.
#          takes the leader longer than _QUICK.
#
# The leader answers requests itself, because waking another thread for a quick response would cost
# more than it saves. But while a handler waits, for example for a database, the leader cannot do
# anything else. In two cases, it therefore leaves all requests to helpers for the next
# _OFFLOAD_SECONDS:
#
# -   The leader has had to wait for _LEAST_WAIT or longer in each of _WAITS_IN_A_ROW consecutive
#     responses. (A single wait may be a coincidence, because a busy machine sometimes takes the
#     processor away from a thread.)
#
# -   A response takes longer than _QUICK. Then the watch hands over the lead. The old leader
#     finishes its response, gives the connection back to the new leader, and rests.
#
# Time that the process spends computing does not count as waiting: other threads have to wait for
# the interpreter lock during this time, so nothing would be gained by using helpers. A
# free-threaded build of Python has no such lock, so there the entire response time counts.
#
# The application and log handlers may have to wait. They therefore run only where another thread
# can take over, unless the system cannot start more threads. The lead is handed over only to a
# thread that already exists. If there is none, the leader has to finish a slow response itself, and
# a request whose stream or upload would have to wait is answered with 503.
#
# Answering a request whose body is still to come may require starting another thread and handing
# over the lead. Such uploads and all other requests have separate queues, which are served in turn,
# so that hundreds of uploads do not hold up the other requests.
#
# What can a client make the leader do? In each round, the leader spends at most one turn each on
# receiving and decoding bytes, on TLS handshakes, and on sending bytes. But it also reads the files
# that it sends, so a disk that hangs holds up all clients.
#
# How many threads are there? Each connection that has a thread holds a slot of one of the following
# kinds, and the number of slots of each kind is limited:
#
#     _ANSWERS   for a thread in which the application prepares a response. There are `threads` of
#                these.
#     _STREAMS   for a thread that waits for the application's next block, or for its client to read
#                one. There are `max_waiting` of these.
#     _EVENTS    for a thread that does the same for a stream of events, which may be silent for
#                hours. These count towards _STREAMS, and may use up to four fifths of those slots.
#     _UPLOADS   for a thread that waits for its client to send more of a body. These count towards
#                _STREAMS, and may use up to half of those slots.
#
# A response that has moved to another kind of slot keeps that slot until it ends. If slow uploads
# moved back to _ANSWERS after their last byte, they could take all the slots that quick requests
# need.
#
# Could silent clients occupy all _UPLOADS slots forever? No. If all of them are taken, the server
# gives up on an upload, so that a new one can have its slot. It chooses the oldest of the uploads
# that have sent fewer than _PIECE bytes. The thread that handles the old upload notices this a
# moment later, and holds one of the _STREAMS slots until its response has ended.
#
# A thread that has had nothing to do for _LONGEST_REST ends.

_LEAST_WAIT = 0.0002  # seconds of waiting after which another thread may be worth its cost
_WAITS_IN_A_ROW = 3  # after this many such waits in a row, the leader uses helpers
_QUICK = 0.01  # seconds that a leader may spend on one response
_OFFLOAD_SECONDS = 0.5  # seconds for which the leader then leaves all requests to helpers
_MOST_ANSWERED = 16  # if this many responses wait for the leader to send them, helpers pause
_TURN = 0.005  # seconds for each kind of work in a round
_LONGEST_REST = 10  # seconds after which an idle thread ends


def _waiting_time() -> float:
    """Return how many seconds this process has spent waiting since some fixed moment."""
    if _has_gil():
        return time.perf_counter() - time.process_time()
    return time.perf_counter()


class _AnswerTimer:
    """Tells the watch when the leader has worked on one response for too long.

    It ticks twice within _QUICK. A response that was already running at the previous tick counts as
    late. This way, the leader does not have to wake the watch for each response, which would cost
    as much as the response itself. The watch sleeps while no request is being answered. All methods
    must be called with the lock held.
    """

    _number = 0  # how many responses have begun
    _runs = False  # True while the last of them has not ended
    _seen = 0  # how many had begun at the last tick
    _sleeps = False  # True if the watch sleeps until the next response

    def __init__(self, lock: threading.Lock) -> None:
        self._wake = threading.Condition(lock)

    def begin(self) -> None:
        """Record that the leader begins a response."""
        self._number += 1
        self._runs = True
        if self._sleeps:
            self.wake()

    def end(self) -> None:
        """Record that the response has ended, or that its thread no longer leads."""
        self._runs = False

    def wake(self) -> None:
        self._sleeps = False
        self._wake.notify()

    def wait(self) -> bool:
        """Wait for a tick, and tell whether a response is late."""
        self._sleeps = self._number == self._seen and not self._runs
        self._seen = self._number
        self._wake.wait(None if self._sleeps else _QUICK / 2)
        return self._runs and self._number == self._seen


class _ThreadPool:
    """A limited number of threads, one of which is the leader.

    The leader calls `Server._round` again and again. The other threads only answer requests.
    """

    # The lock guards these attributes.
    ended = False
    spooled = 0  # how many temporary files the uploads use
    _upload_is_next = False
    _leader = 0  # the identifier of the thread that leads, or 0
    _idle = 0  # how many threads are resting or about to get a role
    _offload_until = 0.0  # the time until which the leader leaves requests to helpers
    _watch_leads = False  # True if the watch leads, because no other thread can
    _waits = 0  # in how many consecutive responses the leader had to wait

    def __init__(self, server: Server, threads: int, others: int) -> None:
        self._server = server
        self._log_writer = server._log_writer
        self._limits = [threads, others, (4 * others + 4) // 5, (others + 1) // 2]
        # The lock does not guard the next four attributes. The leader adds to the first two and
        # removes from the third, and any thread adds to the fourth; each of these operations is
        # atomic.
        self.unanswered: deque[_Connection] = deque()  # requests whose body has arrived
        self.uploads: deque[_Connection] = deque()  # requests whose body is still to come
        self.answered: _Queue = {}  # connections to be given back to the leader
        self.threads: set[threading.Thread] = set()
        # The lock guards all other attributes. Threads without a role wait for `_change`.
        self._taken = [0, 0, 0, 0]  # how many connections hold each kind of slot
        self._bodies: dict[_Connection, _Body] = {}  # the bodies that hold an _UPLOADS slot
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._timer = _AnswerTimer(self._lock)  # tells the watch when the leader is late

    # Any thread may call these methods.

    def start(self) -> None:
        """Start the watch and the leader; raise RuntimeError if they cannot be started."""
        with self._lock:
            self.start_thread(self._watch)
            self.start_thread(self._work)
            self._idle = 1

    def add(self, connection: _Connection) -> None:
        """Add a request to those waiting for a thread."""
        body = connection.run.body
        queue = self.unanswered if body is None or body.complete else self.uploads
        queue.append(connection)

    def leads(self) -> bool:
        return self._leader == threading.get_ident()

    def may_answer(self, leads: bool) -> bool:
        """Tell whether a thread (the leader if `leads`, or else a helper) should answer a request.

        The leader answers requests itself, except while they are left to the helpers.
        """
        waits = self.unanswered or self.uploads
        if not waits or self._taken[_ANSWERS] >= self._limits[_ANSWERS]:
            return False
        if leads:
            return not self._offloads()
        # Responses that wait for the leader take up memory that is not counted anywhere.
        return self._offloads() and len(self.answered) < _MOST_ANSWERED

    def _offloads(self) -> bool:
        """Tell whether requests are left to the helpers."""
        return self._watch_leads or monotonic() < self._offload_until

    def take_slot(self, connection: _Connection, slot: int) -> None:
        """Move a connection permanently to another kind of slot.

        Raise HttpException 503 if no slot of this kind is free.
        """
        if connection.slot != _ANSWERS:
            return
        with self._lock:
            what = "uploads at the same time" if slot == _UPLOADS else "open streams"
            if slot == _UPLOADS and self._taken[slot] == self._limits[slot]:
                self._give_up_body()
            self._check_limit(slot, what)
            self._taken[_ANSWERS] -= 1
            self._taken[slot] += 1
            connection.slot = slot
            if slot == _UPLOADS:
                self._bodies[connection] = connection.run.body

    def leave_lead(self) -> None:
        """Let another thread lead before this one waits; raise HttpException 503 if none can."""
        if self.leads():
            with self._lock:
                self._check_successor()
                self._hand_over_lead()

    def check_successor(self) -> None:
        """Raise HttpException 503 if this thread leads and no other thread could take over."""
        if self.leads():
            with self._lock:
                self._check_successor()

    def count_files(self, count: int) -> None:
        """Add to the number of temporary files; raise HttpException 503 if it is too large."""
        with self._lock:
            if count > 0:
                self._check_limit(_STREAMS, "temporary files of uploads")
            self.spooled += count

    def share(self) -> None:
        """Let helpers answer the requests that are left to them."""
        if (self.unanswered or self.uploads) and not self.ended:
            with self._lock:
                self._share()

    def end(self) -> set[_Connection]:
        """Let the threads end, and return the connections that do not have a thread."""
        with self._lock:
            self.ended = True
            self._change.notify_all()
            self._timer.wake()
            return {*self.unanswered, *self.uploads, *self.answered}

    def close_result(self, run: _RequestHandler) -> None:
        """Close what the application has returned, even while a thread waits for its next block.

        This is done in another thread, because close() may never return.
        """

        def close() -> None:
            result = vars(run).pop("result", None)  # unless its own thread has done so
            # If a generator is running, close() fails, and the generator is left to end with its
            # thread.
            with suppress(BaseException):
                result.close()

        with suppress(RuntimeError):  # the system cannot start more threads
            self.start_thread(close)

    def start_thread(self, work: _Callback) -> None:
        """Call `work` in a new thread; raise RuntimeError if the system cannot start one."""
        # This is a daemon thread, because an endless response must not keep the process alive.
        thread = threading.Thread(target=work, daemon=True)
        self.threads.add(thread)  # before the thread starts, because it may call `Server.stop`
        try:
            thread.start()
        except RuntimeError:
            self.threads.discard(thread)
            raise

    def join(self) -> None:
        """Wait for the threads to end, but only briefly if some are stuck in a response."""
        until = monotonic() + (0.1 if any(self._taken) else 1)
        for thread in list(self.threads):
            thread.join(max(0, until - monotonic()))

    # These methods must be called with the lock held.

    def _check_limit(self, slot: int, what: str) -> None:
        # All waiting connections count towards the limit on streams. Temporary files of uploads
        # count, too: like these connections, they cannot be closed to make room.
        waiting = sum(self._taken) - self._taken[_ANSWERS] + self.spooled
        if waiting >= self._limits[_STREAMS] or self._taken[slot] >= self._limits[slot]:
            raise _Overloaded(f"too many {what}")

    def _give_up_body(self) -> None:
        """Free an _UPLOADS slot by giving up on an upload that has hardly begun, if any has."""
        for connection, body in self._bodies.items():
            if body.size < _PIECE:
                body.give_up(HttpException(408, "another upload needed its slot"))
                connection.slot = _STREAMS  # until its thread has noticed the failure
                self._taken[_STREAMS] += 1
                self._taken[_UPLOADS] -= 1
                del self._bodies[connection]
                break

    def _share(self) -> None:
        """Wake or start as many threads as are needed to lead and to answer requests."""
        needed = 0 if self._leader else 1
        if self._offloads():
            free = self._limits[_ANSWERS] - self._taken[_ANSWERS]
            needed += min(len(self.unanswered) + len(self.uploads), free)
        self._change.notify(needed)
        while self._idle < needed:
            if not self._add_thread():
                if not self._taken[_ANSWERS]:
                    self._offload_until = monotonic()  # without helpers, the leader has to answer
                break

    def _add_thread(self) -> bool:
        """Start a thread that looks for a role; return False if the system cannot start one."""
        try:
            self.start_thread(self._work)
        except RuntimeError as error:
            self._server._warn("threads", f"cannot start another thread: {error}")
            return False
        self._idle += 1
        return True

    def _check_successor(self) -> None:
        if not self._find_successor():
            raise _Overloaded("too few threads")

    def _find_successor(self) -> bool:
        """Find or start a thread that can lead; return False if there is none."""
        return self._idle > 0 or self._add_thread()

    def _hand_over_lead(self) -> None:
        """Let a successor lead. Call this only after `_find_successor` has found one."""
        self._leader = 0
        self._timer.end()
        self._share()

    def _offload(self) -> None:
        self._offload_until = monotonic() + _OFFLOAD_SECONDS
        self._waits = 0

    # The threads in the pool run these methods.

    def _work(self) -> None:
        while role := self._find_role():
            role()
            with self._lock:
                self._idle += 1

    def _find_role(self) -> _Callback | None:
        """Rest until there is a role, and return it; return None if the thread should end."""
        with self._lock:
            is_needed = self._change.wait_for(
                lambda: not self._leader or self.ended or self.may_answer(leads=False),
                _LONGEST_REST,
            )
            self._idle -= 1
            if self.ended:
                return None
            if not is_needed:
                self.threads.discard(threading.current_thread())
                return None
            if self._leader:
                return self._help
            self._leader = threading.get_ident()
            return self._lead

    def _lead(self) -> None:
        while self.leads() and not self.ended:
            try:
                self._server._round()
            except Exception as error:
                message = "the server failed, but continues"
                self._log_writer.enqueue(_report, None, logging.ERROR, message, error)
                time.sleep(_QUICK)
            until = monotonic() + _TURN
            while self._answer_next() and monotonic() < until:
                pass
            self.share()

    def _help(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Answer a request; return False if this thread has nothing to answer."""
        with self._lock:
            leads = self.leads()
            if self.ended or not self.may_answer(leads):
                return False
            queue, other = self.unanswered, self.uploads  # they take turns
            if self._upload_is_next:
                queue, other = other, queue
            self._upload_is_next = not self._upload_is_next
            connection = (queue or other).popleft()
            connection.slot = _ANSWERS
            self._taken[_ANSWERS] += 1
            if leads:
                self._timer.begin()
        # Asking for the processor time of the process takes longer than reading the clock, so this
        # is done only after the leader has had to wait.
        look = _waiting_time if self._waits else time.perf_counter
        began = look()
        try:
            connection.run.run(self._server.app)
        except BaseException as error:
            connection.lost = True  # the response is missing or incomplete
            connection.report(logging.ERROR, "a run has failed", error)
        if not self._server._alive:
            raise SystemExit  # a handler has forked, and this is the child process
        if connection.run.body is not None:
            connection.run.free_body()
        has_waited = look() - began >= _LEAST_WAIT
        with self._lock:
            self._bodies.pop(connection, None)
            self._taken[connection.slot] -= 1
            ended = self.ended
            if not ended:
                self.answered[connection] = None
            is_first = len(self.answered) == 1
            leads = self.leads()  # the watch may have handed over the lead meanwhile
            if leads:
                self._timer.end()
                self._waits = self._waits + 1 if has_waited else 0
                if self._waits == _WAITS_IN_A_ROW:
                    self._offload()
        if ended:
            connection.close()
        elif is_first and not leads:  # if it is not the first, the leader is awake already
            self._server._wake()
        return True

    def _watch(self) -> None:
        """Hand over the lead if a response takes too long.

        Without a successor, the leader has to finish its response first. A stopping server cannot
        wait for this, so the watch then takes over the lead itself, but answers no requests.
        """
        with self._lock:
            while not self.ended:
                if not self._timer.wait() or self.ended:
                    continue
                self._offload()
                if self._find_successor():
                    self._hand_over_lead()
                elif self._server._stopping:
                    self._watch_leads = True
                    self._leader = threading.get_ident()
                    break
        self._lead()


# ---- the server --------------------------------------------------------------
#
# How can one thread, the leader, serve thousands of clients? It never waits for any one client. In
# each round (`Server._round`), it sends all responses that are ready, waits until something
# happens, and then receives and parses everything that has arrived. Between two rounds it answers
# requests. It does each kind of work for many clients in a row, because that is faster than
# switching between the kinds. In each round, it has a limited time for each kind of work. It begins
# with the connection that has waited the longest and, when the time is up, continues in the next
# round, so that no client can starve another.
#
# The server holds what all connections share: the listener, the selector, the clock, and the
# accounts of memory. On a first reading, you can skip the functions below the class.
#
# Who keeps track of which time? All times are read from the `monotonic` clock.
#
# time                      owner                 what it says
#
# connection.entered        the leader            when the connection entered its stage
# connection.deadline       the leader            when it must have left this stage
# connection.spared_until   the leader            when the extra time after the deadline ends, in
#                                                 which bytes that have arrived may still be used
# rate.left                 the thread that       how many seconds the client has for the next bytes
#                           moves the bytes
# server._now               the leader            when this round began
# server._checked           the leader            when the deadlines were last checked
#
# While the leader reads a body or sends a response, only `deadline` counts, and `rate.left` does
# not change. A thread that waits for a client counts `rate.left` down itself, and its connection
# has no deadline.
#
# How does the server stop (after SIGTERM or `Server.stop`) without losing a request that was sent
# earlier? That depends on how far the request has got:
#
# the request                      what the server does
#
# waits to be accepted             It accepts waiting connections once more.
# waits for a TLS handshake        It continues as long as each message arrives within _SHORT_WAIT.
# has not been read yet            It closes an idle connection only after checking that nothing has
#                                  arrived.
# has arrived in part              It waits up to _SHORT_WAIT for the rest of a head, or for more of
#                                  a body, and then answers with 408.
# is being answered                It waits up to stop_timeout. The response says
#                                  "Connection: close", unless another request has arrived after
#                                  this one.
# follows a response that was      It keeps the connection open for _GRACE.
#   made before the server began
#   to stop

_LAST_TURN = 0.1  # seconds for which a stopping server still accepts the waiting connections
_TICK = 0.25  # seconds between two checks of the deadlines
_BACKLOG = 1024  # connections that may wait to be accepted; others try again a second later
_STOP_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
]


class Server:
    """Serve a WSGI application (PEP 3333) over HTTP/1.1 (RFC 9110, RFC 9112).

    The server listens as soon as it is created, and answers requests once
    `start()` or `serve_forever()` is called. `with Server(app) as server:`
    starts it, and stops it at the end of the block. `port` is the port in use,
    and `url` is the address to open in a browser.

    - `app`: the application. If it is not a WebApp, it gets each chunked body
      as a whole, with a CONTENT_LENGTH; a chunked body of more than 2 MiB is
      spooled to a temporary file first.
    - `host`: an IP address or a name; for a name, the server uses its IPv4
      address. With "", it listens on every address of the machine.
    - `port`: the port number; with 0, the system chooses a free port.
    - `quiet`: if True, the server writes no access lines.
    - `threads`: how many requests can be answered at the same time.
    - `header_timeout`: seconds for a whole request header, and for each
      message of a TLS handshake.
    - `idle_timeout`: seconds between two requests on a connection.
    - `body_timeout`: seconds for each 64 KiB of a request body, averaged over
      the last 256 KiB.
    - `write_timeout`: seconds for each 64 KiB of a response, averaged over the
      last MiB.
    - `stop_timeout`: seconds for requests that are still running when the
      server stops.
    - `on_stop`: a function without parameters. It is called once, in its own
      thread, when the server begins to stop. Streams of events end after it
      has returned, so it can still send them a last message. An exception that
      it raises is logged.
    - `ssl_context`: an ssl.SSLContext, which makes this an HTTPS server. If
      its `verify_mode` asks clients for a certificate, the environ contains
      the certificate as `SSL_CLIENT_CERT`, in PEM format. If you load another
      server certificate into the context later, new connections use it.
    - `socket`: an existing listening socket, for example one that systemd has
      opened, or a Unix socket. It replaces `host` and `port`. For a Unix
      socket, `url` is `unix:` followed by its path. Several servers can share
      a socket if each gets a copy of it, made with `socket.dup()`.
    - `trusted_hosts`: the host names under which clients may reach the server.
      Case and port are ignored, and `["*"]` allows every name. A request for
      any other name is answered with 421. The default is None, which also
      allows every name, except at a loopback address without a trusted proxy.
      At such an address, only `localhost`, its subdomains, `host` and IP
      addresses are allowed, so that pages from other sites cannot read what
      this machine serves (DNS rebinding).

    The timeouts apply to each client, so that silent clients cannot hold on to
    connections and threads. If you want no timeout, pass a large number, such
    as 10**9.

    Raise OSError if the server cannot listen on the address; the `strerror` of
    this exception is a complete sentence that you can show to users. Also
    raise OSError for a socket that cannot listen, and TypeError for a socket
    that `ssl` has wrapped.

    A subclass may change four limits. Each limit applies to all clients
    together, so that a crowd of them cannot use up the memory, the disk or the
    threads. If you want no limit, set a large number, such as 10**12.

    - `max_waiting`: how many threads may wait for the next block of a stream
      or for a client; each temporary file of an upload counts as a thread. At
      most half of these threads may wait for a request body. If one more has
      to wait for a body, the oldest upload of which less than 64 KiB has
      arrived is answered with 408 to make room.
    - `max_collected`: bytes of request bodies in memory. Beyond this, the
      server reads only one body at a time; the others wait for up to
      `body_timeout` before their requests are answered with 503.
    - `max_unsent`: bytes of responses in memory that have not been sent yet.
      Beyond this, the slowest reader is disconnected.
    - `max_spooled`: bytes of request bodies in temporary files. These are
      uploaded files, and chunked bodies for an application that is not a
      WebApp. The limit is never below the largest `max_upload_size` of the
      application and of those mounted in it, so that a single upload never
      exceeds it. Beyond the limit, one upload is answered with 503: the one
      that has arrived most slowly or, if all of them began less than two
      seconds ago, the one that exceeded the limit.
    """

    max_waiting = 1000
    """Threads that may wait for a stream or a client, plus temporary files of uploads."""
    max_collected = 64 * 2**20
    """Bytes of request bodies in memory, for all requests together."""
    max_unsent = 256 * 2**20
    """Bytes in memory that have not been sent yet, for all responses together."""
    max_spooled = _MAX_SPOOLED
    """Bytes of request bodies in temporary files, for all requests together."""

    # Only the leader sets these:
    _last_data = b""  # the head of the last request
    _stopped_at = 0.0  # when the server began to stop; 0.0 before that
    _events_may_end = False  # True while the server stops, once on_stop has returned
    # False if a person at a terminal should learn which requests are still running.
    _wait_announced = True
    # Any thread may set these:
    _stopping = False
    _alive = True  # False in a child process
    _raised: BaseException | None = None  # the exception from the program's signal handler

    def __init__(
        self,
        app: _WSGIApplication,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        quiet: bool = False,
        threads: int = 64,
        header_timeout: float = 10,
        idle_timeout: float = 75,
        body_timeout: float = 10,
        write_timeout: float = 30,
        stop_timeout: float = 10,
        on_stop: Callable[[], object] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        socket: socket.socket | None = None,
        trusted_hosts: Iterable[str] | None = None,
    ) -> None:
        _check_system()
        if mistake := _why_not_wsgi(app):
            raise TypeError(f"Server(): {mistake}")
        _check_address(host, port)
        host = host.strip("[]")
        _check_flags(quiet=quiet)
        if _check_number("threads", threads) < 1:
            raise ValueError(f"threads must be 1 or more, not {threads}")
        self.app = app
        self.host = host
        self.quiet = quiet
        self.header_timeout = _check_seconds("header_timeout", header_timeout)
        self.idle_timeout = _check_seconds("idle_timeout", idle_timeout)
        self.body_timeout = _check_seconds("body_timeout", body_timeout)
        self.write_timeout = _check_seconds("write_timeout", write_timeout)
        self.stop_timeout = _check_seconds("stop_timeout", stop_timeout)
        if on_stop is not None and not (callable(on_stop) and _takes(_signature(on_stop))):
            raise TypeError(f"on_stop must be a function without parameters, not {_value(on_stop)}")
        self._on_stop: Any = on_stop
        self._trusted_hosts = {"*"} if trusted_hosts is None else _check_hosts(trusted_hosts)
        self._log_writer = _LogWriter()
        self._ssl_context = _check_ssl_context(ssl_context) if ssl_context is not None else None
        self._most = _most_connections()
        # If only a few connections can be open, only some of them may wait in threads. This leaves
        # room for those that are being answered, for as many in other stages, and for the
        # application's files.
        others = min(self.max_waiting, max(self._most - 2 * threads - 24, self._most // 2))
        self._thread_pool = _ThreadPool(self, threads, int(others))
        self._prepare_state()
        with ExitStack() as opened:
            self._listener = opened.enter_context(_listen(host, port, socket))
            self._prepare_sockets(opened)
            applications = [*getattr(app, "_applications", tuple)()]
            for each, _ in applications:
                self.max_spooled = max(self.max_spooled, each._max_upload_size)
            _warn_of_sessions(applications)
            proxied = [place for app, place in applications if app._trusted_proxies]
            # A Unix socket has no port, and no page from another site can reach it.
            address = self._listener.getsockname()[0] if self.port else "::"
            if socket is not None:
                self.host = address if self.port else "localhost"
            if trusted_hosts is None and ipaddress.ip_address(address).is_loopback:
                if not proxied:
                    self._trusted_hosts = {"localhost", ".localhost", host.lower()}
                elif proxied[0]:
                    _report(
                        None,
                        logging.INFO,
                        f"every host name is trusted, because the application at {proxied[0]!r} "
                        "has trusted_proxies: list your host names in trusted_hosts",
                    )
            self._opened = opened.pop_all()  # closed when the server has stopped
        self.base_environ: _Environ = {
            "SCRIPT_NAME": "",
            "SERVER_NAME": self.host or "localhost",
            # A Unix socket has no port, so this is the default port of the scheme.
            "SERVER_PORT": str(self.port or (443 if ssl_context else 80)),
            "SERVER_SOFTWARE": "webapp",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "https" if ssl_context else "http",
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "wsgi.file_wrapper": FileWrapper,
        }

    def _prepare_state(self) -> None:
        # Only the leader uses these: all connections, in the order in which they last made
        # progress, and those that are ready, by stage.
        self._connections: _Queue = {}
        self._ready: dict[str, _Queue] = {stage: {} for stage in _STAGES}
        self._last_head = _Head("", "", False)  # the result of parsing _last_data
        # When the current round began, and when the deadlines were last checked.
        self._now = self._checked = monotonic()
        self._warned: dict[str, float] = {}  # when a warning about each subject was last logged
        # Any thread may use these:
        self._files: set[Any] = set()  # the files that are being sent
        self._accounts = _Accounts(self)
        self._previous: dict[int, Any] = {}  # the signal handlers that ours have replaced
        self._finished = threading.Event()

    def _prepare_sockets(self, opened: ExitStack) -> None:
        self._wake_receiver, self._wake_sender = map(opened.enter_context, socket.socketpair())
        for sock in (self._wake_receiver, self._wake_sender, self._listener):
            sock.setblocking(False)
        address = self._listener.getsockname()
        self.port: int = address[1] if isinstance(address, tuple) else 0
        if self.port:  # it is not a Unix socket
            # Connections inherit the options of the listener.
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # This way, the server notices early that a slow reader is still reading.
            if sys.platform != "win32" and hasattr(socket, "TCP_NOTSENT_LOWAT"):
                self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _SLICE)
        self._selector = opened.enter_context(selectors.DefaultSelector())
        self._selector.register(self._listener, _READ)
        self._selector.register(self._wake_receiver, _READ)

    @property
    def url(self) -> str:
        """The address to open in a browser, such as http://127.0.0.1:8000.

        For a Unix socket, it looks like unix:/run/app.sock.
        """
        if not self.port:
            return f"unix:{self._listener.getsockname()}"
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        if ":" in host:
            host = f"[{host}]"
        return f"{self.base_environ['wsgi.url_scheme']}://{host}:{self.port}"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start serving in new threads, and return.

        Raise RuntimeError if the server has been started before, or if no
        thread can be started; in the latter case, the server is closed.
        """
        if self._log_writer.thread.ident is not None:
            raise _mistake(RuntimeError, "this server has already been started: create a new one")
        _servers.add(self)
        try:
            self._log_writer.thread.start()
            self._thread_pool.start()
        except BaseException:
            self._close()
            raise

    def serve_forever(self) -> None:
        """Serve until stop(), Ctrl-C or SIGTERM, and return when the server has stopped.

        If the server is stopping already, Ctrl-C ends it at once.

        The server handles signals only if you call this method in the main
        thread, and restores your handlers afterwards. Ignored signals stay
        ignored. If your program has its own signal handler, that handler is
        called immediately as well. If it raises an exception, this method
        raises the same exception after the server has stopped.
        """
        try:
            if threading.current_thread() is threading.main_thread():
                _handle_stop_signals(self._on_signal, self._previous)
            self.start()
            self._wait_for_end()
        finally:
            self.stop()  # in case the handler of another signal has raised an exception
            self._give_signals_back()
        if self._raised is not None:
            raise self._raised

    def _wait_for_end(self) -> None:
        # It waits in short steps, because on Windows and on free-threaded builds, a signal does not
        # always interrupt a wait. It does not wait for the event, because a signal handler that
        # calls stop() could then wait forever for the event's lock.
        while not self._finished.is_set():
            self._log_writer.thread.join(0.1)

    def _give_signals_back(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:  # nobody has replaced it
                signal.signal(number, previous or signal.SIG_DFL)

    def stop(self) -> None:
        """Answer the requests that have arrived, and close everything.

        Any thread may call this method. It returns when the server has
        stopped. In a handler, however, it returns at once, because the
        handler's own request has to be answered first.

        The server accepts no new connections, except those that were waiting
        already. Running requests have `stop_timeout` seconds to finish. A client
        that is silent in the middle of a request, or that may still be reading
        its response, has only one second of this time. Streams of events end
        at once or, if there is an `on_stop`, a moment after it has returned.
        The last response on a connection says `Connection: close` (RFC 9112
        section 9.6). A response that was made before the server began to
        stop does not have this field, so another request may follow it within
        0.2 seconds.
        """
        self._stopping = True
        self._wake()
        if self._log_writer.thread.ident is None:  # it was never started
            self._close()
        elif threading.current_thread() not in self._thread_pool.threads:
            self._wait_for_end()
            self._thread_pool.join()
            self._log_writer.thread.join(_LONGEST_LOG_END)

    def _on_signal(self, number: int, frame: Any) -> None:
        # A service manager may send several SIGTERMs. Only a second Ctrl-C means that somebody does
        # not want to wait.
        at_once = self._stopping and number == signal.SIGINT
        if not self._stopping:
            self._wait_announced = self.quiet
        self._stopping = True
        self._wake()
        previous = self._previous.get(number)
        if callable(previous) and previous not in (signal.default_int_handler, _end_process):
            try:
                previous(number, frame)
            except BaseException as error:
                self._raised = error
        if at_once:
            self.stop_timeout = 0
            raise self._raised or SystemExit(128 + number)

    # For any thread.

    def _wake(self) -> None:
        """Wake the leader, because a response is ready or the server has to stop."""
        with suppress(OSError):  # the leader is awake already, or the server has stopped
            self._wake_sender.send(b"!")

    def _warn(self, subject: str, message: str) -> None:
        """Log a WARNING, but at most one a minute for each subject."""
        now = monotonic()
        if now - self._warned.get(subject, -_NEVER) >= 60:  # seconds
            self._warned[subject] = now
            self._log_writer.enqueue(_report, None, logging.WARNING, message)

    # Only the leader calls these methods. It owns the selector and all connections that are not in
    # the stage _ANSWERING.

    def _check_host(self, host: str | None) -> None:
        """Raise HttpException 421 for a name that is not trusted (RFC 9110 section 15.5.20).

        Another site can point its own name at this machine (DNS rebinding). In that case, only the
        Host header shows whether a request was made by a page on that site or by one of our own
        pages. The trusted names are in the form that `_host_and_port` returns. The name "*" stands
        for every name, and ".localhost" for every name below localhost and every IP address.
        """
        if host is None:
            return
        name, names = _host_and_port(host)[0], self._trusted_hosts
        if name in names or "*" in names:
            return
        if ".localhost" in names and (name.endswith(".localhost") or _read_address(name)):
            return
        explained = f"{name[:80]!r} is not in trusted_hosts: only if that name is yours, write "
        explained += f"trusted_hosts=[{name[:80]!r}], or pass it to --trusted-host"
        self._warn("hosts", f"a request was answered with 421: the host {explained}")
        raise HttpException(421, explained)

    def _round(self) -> None:
        """Send all responses, wait, and then let each connection that is ready take a step."""
        self._now = monotonic()
        if self._thread_pool.answered:
            self._take_steps(self._thread_pool.answered, _Connection.begin_to_send)
            self._thread_pool.share()  # because requests may be pipelined behind these responses
        if self._stopping and self._continue_to_stop():
            self._close()
            return
        looked = self._now
        happened = self._selector.select(self._time_to_wait())
        self._now = monotonic()
        for key, _ in happened:
            connection = key.data
            if connection is not None:
                self._note_ready(connection)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                with suppress(BlockingIOError):  # some systems report a socket before it is ready
                    self._wake_receiver.recv(_PIECE)
        for ready in filter(None, self._ready.values()):
            self._take_steps(ready, _Connection.take_step)
        while self._descriptors() > self._most and self._make_room():
            pass  # requests may have opened files since then
        if self._now - self._checked >= _TICK or self._stopping:
            self._check_deadlines(looked, {key.data for key, _ in happened})

    def _note_ready(self, connection: _Connection) -> None:
        """Let a connection take its next step in this round."""
        self._ready[connection.stage][connection] = None

    def _time_to_wait(self) -> float:
        """Return how many seconds the leader may wait for something to happen."""
        if (
            self._thread_pool.answered
            or self._now - self._checked >= _TICK
            or any(self._ready.values())
            or self._thread_pool.may_answer(leads=True)
        ):
            return 0
        # A request may be waiting for a slot, or for another thread to take it.
        waits = self._thread_pool.unanswered or self._thread_pool.uploads
        return _QUICK if waits or self._stopping else _TICK

    def _take_steps(self, work: _Queue, step: _Step) -> None:
        """Let each connection take a step, in the order of the queue, until the turn is over."""
        until = monotonic() + _TURN
        for connection in list(work):
            del work[connection]
            try:
                step(connection)
            except OSError:  # the client has left
                connection.drop()
            except Exception as error:  # a bug in the server costs only this connection
                message = f"the server failed for {connection.address}"
                connection.report(logging.ERROR, message, error)
                connection.drop()
            if monotonic() >= until:
                break

    # New connections.

    def _accept(self) -> bool:
        """Accept connections until the turn is over; return whether more of them may be waiting.

        If no more connections may be open, an old connection is closed to make room for a new one.
        If none can be closed, return False even if more clients are waiting.
        """
        until = monotonic() + _TURN
        if self._descriptors() >= self._most and not self._make_room():
            self._stop_listening("too many are open")  # meanwhile, clients wait in the backlog
            return False
        while monotonic() < until and self._descriptors() < self._most:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return False
            except ConnectionError:  # the client has left already
                return True
            except OSError as error:  # most likely all descriptors are in use
                if error.errno == errno.ENOTCONN or self._make_room():
                    return True
                self._stop_listening(error)
                return False
            kind = _Connection if self._ssl_context is None else _SecureConnection
            connection = kind(self, sock, address)
            self._take_steps({connection: None}, kind.begin)
        return True

    def _stop_listening(self, reason: object) -> None:
        """Accept no connections until the next check of the deadlines."""
        with suppress(KeyError):  # it does not listen at the moment
            self._selector.unregister(self._listener)
        self._warn("connections", f"cannot accept a connection: {reason}")

    def _descriptors(self) -> int:
        """Return how many descriptors the server has opened for its clients."""
        return len(self._connections) + len(self._files) + self._thread_pool.spooled

    def _make_room(self) -> bool:
        """Close the least recently active connection; return False if none can be closed.

        A server may do so at any time (RFC 9112 section 9.5).
        """
        # A download uses two descriptors. When files use more than a quarter of all descriptors,
        # downloads are closed first.
        downloads = len(self._files) > self._most / 4
        for connection in self._connections:
            run = connection.run
            if downloads and (run is None or run.file is None):
                continue
            if connection.stage != _ANSWERING:
                connection.drop()
                return True
        return False

    def _check_deadlines(self, looked: float, ready: Collection[_Connection]) -> None:
        """End connections whose deadline has passed, and listen again if the server had to pause.

        A handler may have held the interpreter lock, or the system may have suspended the process,
        until after a deadline. So a connection counts as late only if the selector found, after the
        deadline, that nothing had arrived.
        """
        late: _Queue = {}
        spared = False
        for each in [each for each in self._connections if each.deadline <= looked]:
            if each in self._ready[each.stage]:  # it waits for its turn
                if each.stage == _HANDSHAKE:  # waiting for a turn may take longer than the limit
                    each.enter(_HANDSHAKE, self.header_timeout)
            elif each in ready and each.is_spared():
                spared = True
            else:
                late[each] = None
        self._take_steps(late, _Connection.time_out)
        if not (late or spared):  # otherwise it checks again in the next round
            self._checked = self._now
        if not self._stopping:
            with suppress(KeyError):  # it listens already
                self._selector.register(self._listener, _READ)

    # Stopping the server.

    def _continue_to_stop(self) -> bool:
        """Continue to stop the server; tell whether all requests have ended or run out of time."""
        now = monotonic()
        if not self._stopped_at:
            self._stopped_at = now
            self._begin_to_stop()
        waited = now - self._stopped_at
        for connection in list(self._connections):
            _STAGES[connection.stage].stop(connection)
        kept = [each for each in self._connections if each.keeps_stop()]
        running = [each.run for each in kept if each.run is not None]
        if waited > 1 and running and not self._wait_announced:
            self._wait_announced = True
            names = ", ".join(run.describe()[:60] for run in running[:5])
            told = f"waiting up to {self.stop_timeout:g} seconds for responses to end: {names}"
            self._log_writer.enqueue(_say, f"webapp: {told} (press Ctrl-C again to end at once)")
        limit = self.stop_timeout if kept else _GRACE
        return waited >= limit or not self._connections

    def _begin_to_stop(self) -> None:
        """Accept the waiting connections, stop listening, and call `on_stop`."""
        until = self._stopped_at + _LAST_TURN
        while self._accept() and monotonic() < until:
            pass
        with suppress(KeyError):  # it does not listen at the moment
            self._selector.unregister(self._listener)
        self._listener.close()
        self._checked = -_NEVER  # check at once for requests that have arrived
        if self._on_stop is None:
            self._events_may_end = True
            return
        try:
            self._thread_pool.start_thread(self._call_on_stop)
        except RuntimeError as error:
            self._warn("on_stop", f"cannot start a thread to call on_stop: {error}")

    def _call_on_stop(self) -> None:
        try:
            self._on_stop()
        except BaseException as error:
            self._log_writer.enqueue(_report, None, logging.ERROR, "on_stop failed", error)
        self._finished.wait(_GRACE)  # streams notified by on_stop may end on their own
        self._events_may_end = True
        self._wake()

    def _close(self) -> None:
        """Close everything. A thread that is still answering finds its connection shut down."""
        # These connections have a thread, which closes them after the thread pool has ended.
        connections = list(self._connections)
        answering = {each for each in connections if each.stage == _ANSWERING}
        answering -= self._thread_pool.end()
        try:
            for connection in connections:
                if connection in answering:
                    connection.end_answer()
                else:
                    connection.close()
            self._opened.close()
        finally:
            _servers.discard(self)
            self._finished.set()
            self._log_writer.end()

    def _forget(self) -> None:
        """Clean up in a child process, whose copies of the sockets would keep connections open."""
        self._alive = False
        # Only the thread that called fork() is left, and other threads may have held the locks.
        for owner in (self._thread_pool, self._accounts):
            lock: Any = owner._lock
            lock._at_fork_reinit()
        self._finished = threading.Event()
        with suppress(ValueError):  # PyPy can only do this if the main thread has forked
            self._give_signals_back()
        for connection in self._connections:
            connection.socket.close()
        self._opened.close()
        self._finished.set()


def _handle_stop_signals(handle: Any, previous: dict[int, Any]) -> None:
    """Set `handle` as the handler of each signal that is not ignored; save the old handlers."""
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, handle)


def _end_process(number: int, frame: object) -> None:
    """End the process on a signal, which process 1 would otherwise ignore."""
    os._exit(128 + number)


_servers: set[Server] = set()  # the servers that are running in this process

if sys.platform != "win32" and hasattr(os, "register_at_fork"):
    _signal_masks: dict[int, Any] = {}  # the signal masks of threads that are forking

    def _block_signals() -> None:
        """Delay stop signals, which a child process would lose until it has its own handlers."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        _signal_masks[threading.get_ident()] = mask

    def _unblock_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _signal_masks.pop(threading.get_ident()))

    def _forget_servers() -> None:
        """Clean up the servers in a child process, which does not have their threads."""
        for lock in cast(Any, (_parsing.lock, _decoding.lock, _spooling)):
            lock._at_fork_reinit()
        while _servers:
            _servers.pop()._forget()
        _unblock_signals()

    os.register_at_fork(
        before=_block_signals,
        after_in_parent=_unblock_signals,
        after_in_child=_forget_servers,
    )


def _warn_of_sessions(applications: Iterable[tuple[WebApp, str]]) -> None:
    """Warn if two applications log each other's visitors out."""
    seen: _Values = {}  # maps each session_cookie to the keys and the place of its application
    for app, place in applications:
        keys, cookie, _ = app._open_session.args
        if keys:
            other_keys, other_place = seen.setdefault(cookie, (keys, place))
            if keys != other_keys:
                _report(
                    None,
                    logging.WARNING,
                    f"the applications at {other_place or '/'!r} and {place!r} log each other's "
                    f"visitors out: both have the session_cookie {cookie!r}, with different keys; "
                    "give one of the cookies another name",
                )


def _check_system() -> None:
    """Raise RuntimeError if this system cannot run a server."""
    if sys.platform in ("emscripten", "wasi"):
        raise RuntimeError(
            "WebAssembly has no sockets or threads: call the application with TestClient(app)"
        )


def _check_ssl_context(context: Any) -> ssl.SSLContext:
    """Return the context; raise TypeError if a server cannot use it."""
    import ssl

    if not isinstance(context, ssl.SSLContext) or context.check_hostname:  # one for clients
        raise TypeError(
            f"ssl_context must be an ssl.SSLContext for servers, not {_value(context)}: make it "
            "with ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), and call load_cert_chain()"
        )
    return context


def _check_address(host: Any, port: Any) -> None:
    """Raise TypeError or ValueError if a server cannot use this host and port."""
    _check_text("host", host, "; for a port write port=8000")
    _check_port("port", port)


def _check_port(name: str, value: Any) -> None:
    if _check_number(name, value) > 65535:
        raise ValueError(f"{name} must be a whole number up to 65535, not {value}")


def _listen(host: str, port: int, given: Any) -> socket.socket:
    """Return a listening socket: the given one, or a new one for `host` and `port`.

    Unlike http.server, this does not look up the host name for the address.
    """
    if given is not None:
        # accept() of an ssl.SSLSocket would wait for a handshake.
        if not isinstance(given, socket.socket) or hasattr(given, "do_handshake"):
            raise TypeError(
                f"socket must be a socket.socket that can listen, not {_value(given)}: make it "
                "with socket.create_server((host, port)), and pass ssl_context for TLS"
            )
        given.listen(_BACKLOG)
        return given
    both = not host and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if both or ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=both,
        )
    except OSError as error:
        # The socket module appends "(while attempting to bind on address ...)".
        reason = str(error.strerror or error).partition(" (while ")[0]
        error.strerror = f"cannot listen on {host} port {port}: {reason}"
        raise


def _most_connections() -> float:
    """Return how many connections may be open.

    Some descriptors stay free, so that the application can open files and import modules.
    """
    if sys.platform == "win32":
        return 500  # select() can wait for 512 sockets
    limit = os.sysconf("SC_OPEN_MAX")
    return _NEVER if limit < 0 else limit - min(64, limit // 4)


# ---- the command line --------------------------------------------------------
#
# How is an application started? `python -m webapp` (`_main`) and WebApp.run serve it in one
# process. With --reload, this process is a child of another one, which watches the files and
# replaces the child when one of them changes:
#
#     python -m webapp --reload hello.py:app     parent: `_supervise`; child: `_run`

_CHILD = "_WEBAPP_RELOAD"  # environment variable of a child: its parent, and a file that they share
_CANNOT_START = 4  # exit status of a child if no change to a file would help
_POLL = 0.5  # seconds between two checks of the files
_SETTLE = 0.2  # seconds that a change may take, because editors write in several steps
_LAST_SECONDS = 2  # seconds for a program to end after its server has stopped
# Modules and templates are watched. (Other files, such as .css, are read for each request.)
_WATCHED = tuple(".py .html .htm .tpl .tmpl .j2 .jinja .jinja2 .mako".split())
_LIBRARY = os.path.dirname(os.__file__)
_NOT_WATCHED = {  # folders, by their name or path
    "__pycache__",
    "node_modules",
    "site-packages",
    "dist-packages",
    _LIBRARY,
    "/proc",
    "/sys",
    "/dev",
}

_loading = False  # True while the command line imports the application


def _check_run_options(server: str, options: _Values) -> None:
    known = ["host", "port"]
    if server == "webapp":
        known += ["reload", *(Server.__init__.__kwdefaults__ or ())]
    for name, value in options.items():
        if name not in known and value is not False:
            raise TypeError(f"run(server={server!r}) takes no {name}; it takes {', '.join(known)}")


def _run(
    app: _WSGIApplication,
    host: str,
    port: int,
    server: str,
    *,
    quiet: bool,
    reload: bool,
    **options: Any,
) -> None:
    """Serve; if the server cannot listen, print why and raise SystemExit.

    With `reload`, the process that watches the files stays in this function until it exits.
    """
    if server not in ("webapp", "wsgiref"):
        raise ValueError(
            f"server must be 'webapp' or 'wsgiref', not {_value(server)}: other servers have their "
            "own commands, such as gunicorn file:app"
        )
    _check_flags(quiet=quiet, reload=reload)
    _check_run_options(server, {"quiet": quiet, "reload": reload, **options})
    if _loading:
        raise RuntimeError(
            'it calls run() when it is imported: write `if __name__ == "__main__":` above that call'
        )
    try:
        _check_system()
        if reload and not _is_child():
            sys.exit(_supervise(options.get("stop_timeout", 10)))
        if isinstance(app, WebApp):
            app._seal()
        made: Any
        if server == "webapp":
            made = Server(app, host, port, quiet=quiet, **options)
        else:
            from wsgiref.simple_server import make_server

            _check_address(host, port)
            made = make_server(host, port, app)
            made.url = f"http://{host}:{made.server_port}"
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        _say(f"webapp: {error}")
        sys.exit(1)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or f"cannot listen on {host}: {error}"
        other = 8001 if port == 8000 else 8000
        _cannot_start(
            f"{reason}; choose another address or port, such as --port {other} or run(port={other})"
        )
    if isinstance(app, WebApp) and not app._routes:
        _say("webapp: the application has no routes, so it answers every request with 404")
    if not quiet:
        place = made.url
        if host in ("", "0.0.0.0", "::"):
            place += " and all other addresses of this machine"
        on_main_thread = threading.current_thread() is threading.main_thread()
        _say(f"webapp: serving on {place}{' (Ctrl-C stops)' if on_main_thread else ''}")
    with suppress(KeyboardInterrupt):
        made.serve_forever()


def _cannot_start(reason: str) -> NoReturn:
    """Say why the server cannot start, and exit. A parent that watches files then exits as well."""
    _say(f"webapp: {reason}")
    sys.exit(_CANNOT_START if _is_child() else 1)


@functools.cache
def _is_child() -> bool:
    """Tell whether `_supervise` started this process; if so, report all imports to it.

    The environment variable is removed, because programs that this process starts must not find it.
    """
    parent, _, shared = os.environ.pop(_CHILD, "").partition(" ")
    if shared:
        threading.Thread(target=_follow, args=(int(parent), shared), daemon=True).start()
    return bool(shared)


def _follow(parent: int, shared: str) -> None:
    """Report the files of all modules to the parent, and exit after the parent has ended."""
    while sys.platform == "win32" or os.getppid() == parent:  # on Windows, getppid() never changes
        with suppress(OSError), open(shared, "w", encoding="utf-8", errors="replace") as file:
            for each in sys.modules.copy().values():
                with suppress(Exception):  # sys.modules may contain any object
                    print(each.__file__, file=file)
        time.sleep(_POLL)
    for server in [*_servers]:
        server.stop()
    time.sleep(_LAST_SECONDS)
    os._exit(1)


def _supervise(stop_timeout: float) -> int:
    import subprocess
    import tempfile

    _handle_stop_signals(signal.default_int_handler, {})
    command = [sys.executable, *_arguments_of_python()]
    child = None
    try:
        with tempfile.TemporaryDirectory() as shared:
            told = os.path.join(shared, "modules")
            watch = _Watch(told)
            while True:
                while not isdir(watch.folder):
                    time.sleep(_POLL)
                watch.look()
                environ = {**os.environ, _CHILD: f"{os.getpid()} {told}"}
                child = subprocess.Popen(command, cwd=watch.folder, env=environ, close_fds=False)
                waiting = False
                while not (changed := watch.look()):
                    status = child.poll()
                    if status in (0, _CANNOT_START):
                        return min(status, 1)
                    if status is not None and not waiting:
                        waiting = True
                        _say("webapp: waiting for a file to change")
                    time.sleep(_POLL)
                _say(f"webapp: {_printable(changed)} has changed")
                time.sleep(_SETTLE)
                child.terminate()
                try:
                    child.wait(stop_timeout + _LAST_SECONDS)
                except subprocess.TimeoutExpired:
                    _say("webapp: killed the process, which did not exit: check its threads")
                    child.kill()
                    child.wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one signal is enough
        if child is None or child.poll() is not None:
            return 0
        try:
            if sys.platform != "win32":  # there, terminate() would end the child at once
                child.terminate()
            return max(0, child.wait())
        except KeyboardInterrupt:
            child.kill()
            return 130


def _arguments_of_python() -> list[str]:
    """Return the arguments that this process was started with."""
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        return sys.orig_argv[1:]
    spec = sys.modules["__main__"].__spec__
    module = "" if spec is None else spec.name.removesuffix("__main__").removesuffix(".")
    return ["-m", module, *sys.argv[1:]] if module else sys.argv


class _Watch:
    """Notices changes to modules and templates.

    It looks at the folders from which Python imports, at the working directory, and at the modules
    that the child has reported. It skips hidden folders and folders of installed packages.
    """

    def __init__(self, shared: str) -> None:
        self._shared = shared
        self._told: set[str] = set()
        self._times: dict[str, float] = {}  # when each file was last changed
        self._empty: dict[str, float] = {}  # likewise for folders that contain nothing to watch
        self.folder = os.getcwd()

    def look(self) -> str:
        """Return a file that has changed since the last call, or "" if none has."""
        before, self._times = self._times, {}
        folders = {*sys.path} - {"", sys.prefix, sys.base_prefix}
        for folder in {self.folder, *itertools.filterfalse(_is_installed, folders)}:
            self._list(folder)
        with suppress(OSError), open(self._shared, encoding="utf-8") as file:
            self._told.update(itertools.filterfalse(_is_installed, file.read().splitlines()))
        for path in self._told:
            self._times[path] = _changed_at(path)
            before.setdefault(path, self._times[path])
        return min((path for path, _ in before.items() ^ self._times.items()), default="")

    def _list(self, folder: str) -> bool:
        """Record the files to watch in a folder and below it; return whether there are any."""
        changed = _changed_at(folder)
        if self._empty.get(folder) == changed:
            return False
        if exists(os.path.join(folder, "pyvenv.cfg")) and folder != self.folder:
            return False  # a virtual environment
        found = False
        with suppress(OSError):  # the folder is gone, or cannot be read
            for each in [*os.scandir(folder)]:
                if not each.is_dir(follow_symlinks=False):
                    if each.name.endswith(_WATCHED):
                        self._times[each.path] = _changed_at(each.path)
                        found = True
                elif each.name[0] != "." and not {each.name, each.path} & _NOT_WATCHED:
                    found |= self._list(each.path)
        # Some file systems record times in steps of two seconds, and the folder may change again
        # within the same step.
        if not found and time.time() - changed > 2:
            self._empty[folder] = changed
        return found


def _changed_at(path: str) -> float:
    """Return when a file or folder was last changed, or 0 if it is gone."""
    with suppress(OSError):
        return os.stat(path).st_mtime
    return 0


def _is_installed(path: str) -> bool:
    """Tell whether a folder or file belongs to Python or to an installed package."""
    return path.startswith(_LIBRARY) or "site-packages" in path or "dist-packages" in path


def _import_from(folder: str) -> None:
    """Let Python import modules from a folder and from the working directory.

    The two folders are searched after the standard library, because they may contain a file, such
    as html.py, with the name of a standard module that is imported later.
    """
    ours = [os.path.abspath(path) for path in (folder, ".")]
    others = [path for path in sys.path if os.path.abspath(path) not in ours]
    behind = 0
    for place, path in enumerate(others, 1):
        if path.startswith(_LIBRARY) and "-packages" not in path:
            behind = place
    sys.path[:] = [*others[:behind], *dict.fromkeys(ours), *others[behind:]]


def _inherited_socket(descriptor: int) -> socket.socket:
    """Return a socket that was open when this process started, for example one from systemd."""
    try:
        with socket.socket(fileno=descriptor) as inherited:
            return _listen("", 0, inherited).dup()  # child processes do not inherit it
    except (OSError, OverflowError, ValueError) as error:
        _cannot_start(
            f"descriptor {descriptor}: {error}: --fd needs a listening socket, such as one "
            "that systemd opens for ListenStream= without Accept=yes"
        )


def _listen_on_path(path: str) -> socket.socket:
    """Return a listening Unix socket, which replaces an old one whose server has stopped."""
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        _cannot_start("this system has no Unix sockets: use --port instead of --unix")
    listener = socket.socket(family)
    try:
        _remove_old_socket(path, family)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        _cannot_start(f"cannot listen on {_printable(path)}: {reason}; choose another path")
    return listener


def _remove_old_socket(path: str, family: int) -> None:
    """Remove a Unix socket that no process is listening on.

    Raise OSError if the path is something else.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, "the path is empty")
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "the file exists and is not a socket")
    with socket.socket(family) as client:
        client.setblocking(False)  # a server whose backlog is full would keep it waiting
        if client.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)


def _parse_arguments(argv: list[str] | None) -> Any:
    """Return the options of the command line; if one is wrong, print why and raise SystemExit."""
    import argparse

    parser = argparse.ArgumentParser(prog="webapp", description="Serve a WSGI application.")
    add = parser.add_argument
    add("app", nargs="?", help="module:app or path/to/file.py[:app] (default name: app)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on (default: 8000)")
    add("--unix", metavar="PATH", help="listen on a Unix socket")
    add("--fd", type=int, metavar="NUMBER", help="use an open socket (from systemd: 3)")
    add(
        "--trusted-host",
        action="append",
        metavar="NAME",
        help="a name under which clients may reach the server (repeatable)",
    )
    add("--idle-timeout", type=float, metavar="SECONDS", help="between two requests (default: 75)")
    add("--reload", action="store_true", help="restart when a module or template changes")
    add("--quiet", action="store_true", help="write no access lines")
    add(
        "--server",
        choices=["webapp", "wsgiref"],
        default="webapp",
        help="wsgiref is from the standard library; it answers one request at a time",
    )
    add("--routes", action="store_true", help="print a table of the routes and exit")
    add("--version", action="store_true", help="print version and SHA-256 of webapp.py and exit")
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        hint = ""
        if options.app in ("dev", "run", "serve", "start"):
            hint = f"; leave out {options.app}, which is not a command"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if not (options.app or options.version):
        parser.error("name the application: module:app or path/to/file.py")
    try:
        _check_options(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def _check_options(options: Any) -> None:
    """Raise ValueError for options that exclude each other or have an invalid value.

    A new option needs an entry in `_parse_arguments`, and perhaps others here and in `_main`.
    """
    given = [
        name for name, value in vars(options).items() if value is not None and value is not False
    ]
    given.append(f"server {options.server}")
    for option, excluded in (
        ("fd", "unix host port"),
        ("unix", "host port"),
        ("server wsgiref", "fd unix trusted_host idle_timeout reload quiet"),
    ):
        others = [f"--{name.replace('_', '-')}" for name in excluded.split() if name in given]
        if option in given and others:
            raise ValueError(f"--{option} cannot be combined with {' or '.join(others)}")
    if options.port is not None:
        _check_port("--port", options.port)
    if options.idle_timeout is not None:
        _check_seconds("--idle-timeout", options.idle_timeout)
    if options.trusted_host is not None:
        _check_hosts(options.trusted_host)


def _main(argv: list[str] | None = None) -> int:
    """Run `python -m webapp`, and return the exit status."""
    _import_from(".")
    options = _parse_arguments(argv)
    if options.version:
        _say(_version(), sys.stdout)
        return 0
    if os.getpid() == 1:  # in a container, where signals without a handler do nothing
        signal.signal(signal.SIGTERM, _end_process)
    is_parent = options.reload and not options.routes and not _is_child()
    listener = None
    if options.fd is not None and not (is_parent or options.routes):
        # Take the socket before the application opens files; otherwise, a file could get its
        # number.
        listener = _inherited_socket(options.fd)
    try:
        path, name = _locate(options.app)
        _import_from(os.path.dirname(realpath(path)) if path.endswith(".py") else ".")
        if is_parent:
            return _supervise(10)
        app = _load(path, name)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        _say(f"webapp: cannot load {options.app}: {_one_line(error)}")
        return 1
    if options.routes:
        _say(_route_table(app), sys.stdout)
        return 0
    if options.unix is not None:
        listener = _listen_on_path(options.unix)
    options.socket = listener
    options.trusted_hosts = options.trusted_host
    names = "host port server socket trusted_hosts idle_timeout quiet reload".split()
    given = {
        name: value for name, value in vars(options).items() if name in names and value is not None
    }
    WebApp.run(app, **given)  # this method has the defaults, and accepts any application
    return 0


def _route_table(app: Any) -> str:
    if not isinstance(app, WebApp):
        return f"{app!r} is not a WebApp, so its routes cannot be listed"
    app._seal()
    rows = [["METHOD", "PATTERN", "HANDLERS", "SCOPE", "BEFORE", "ERROR", "AFTER"]]
    for route in app.routes():
        hooks = route._hooks
        first = [app.on_request] if app._overrides_on_request else []
        kinds = route.handlers, [*first, *hooks.before], hooks.error, hooks.after
        handlers, *rest = [", ".join(map(_name, kind)) or "-" for kind in kinds]
        rows.append([route.method, route.pattern, handlers, route.scope._prefix or "/", *rest])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )
    return "\n".join(lines)


def _version() -> str:
    import hashlib

    try:
        with open(__file__, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        digest = "unknown, because the module was not loaded from its own file"
    return f"webapp {__version__}\nSHA-256 {digest}"


def _locate(target: str) -> tuple[str, str]:
    """Return the name of the file or module, and the name of the application in it."""
    path, colon, name = target.rpartition(":")
    if colon and name.endswith(")"):
        raise ValueError(f"{name} is a call: write app = {name} in the file, and serve {path}:app")
    if not colon or not all(map(str.isidentifier, name.split("."))):
        path, name = target, "app"
    if exists(path + ".py"):
        path += ".py"
    if path.endswith(".py") and not exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    if isdir(path) and not exists(os.path.join(path, "__init__.py")):
        raise IsADirectoryError(
            "it is a directory: write the file that contains the application, such as hello.py"
        )
    if path != (right := path.rstrip(":/" + os.sep)):
        raise ValueError(f"write {right}")
    return path, name


def _import_file(path: str) -> Any:
    """Import the file, even if another module has the same name, and return the module."""
    import importlib.util

    stem = basename(path)[:-3]
    name = "file_" + re.sub(r"\W", "_", stem)  # unless importing this stem finds the same file
    with suppress(AttributeError, ImportError, OSError, ValueError):
        found = importlib.util.find_spec(stem) if "." not in stem else None
        if found is not None and os.path.samefile(found.origin or "", path):
            name = stem
    spec: Any = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        names = os.path.normpath(path)[:-3].split(os.sep)
        if "relative import" in str(error) and len(names) > 1 and all(map(str.isidentifier, names)):
            raise ImportError(f"{error}; serve the module {'.'.join(names)}") from error
        raise
    return module


def _load(path: str, name: str) -> Any:
    """Import an application; for any other object, raise a TypeError that says what to write."""
    import importlib

    global _loading
    _loading = True
    try:
        is_file = path.endswith(".py")
        namespace = vars(_import_file(path) if is_file else importlib.import_module(path))
    finally:
        _loading = False
    first, *attributes = name.split(".")
    if first not in namespace:
        others = [
            f"{path}:{other}" for other, value in namespace.items() if isinstance(value, WebApp)
        ]
        none = (
            "file.py:name; an application that is created in a function or below "
            '`if __name__ == "__main__":` cannot be found'
        )
        raise TypeError(f"it has no {first!r}: write {' or '.join(others) or none}")
    app = functools.reduce(getattr, attributes, namespace[first])
    if mistake := _why_not_wsgi(app):
        raise TypeError(mistake)
    return app


def _one_line(error: BaseException) -> str:
    """Return the type and message of an error, and where in the loaded code it was raised."""
    text, where = " ".join(str(error).split()), ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename != _FILE and not frame.filename.startswith("<frozen"):
            where = f" ({frame.filename}:{frame.lineno})"
    told = isinstance(error, (SyntaxError, ImportError)) or where in text
    return f"{type(error).__name__}: {text}{'' if told else where}"


if __name__ == "__main__":
    # An application that imports this module must not load the file a second time.
    sys.modules[__spec__.name if __spec__ else "webapp"] = sys.modules["__main__"]
    sys.exit(_main())
