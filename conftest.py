"""Settings that all tests share: profiles of hypothesis, and a limit for tests that hang.

`pytest` is quick; `pytest --hypothesis-profile=thorough` looks for counterexamples much longer.
Tests that do not use hypothesis, such as those of the tutorial, run without it, too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import types
from collections.abc import Iterator
from unittest import mock

import pytest

with contextlib.suppress(ImportError):
    # Import hypothesis without pytest's rewriting of assertions. Where byte code cannot be written,
    # pytest would rewrite its hundred modules at each start.
    finders = [finder for finder in sys.meta_path if "rewrite" not in type(finder).__module__]
    with mock.patch.object(sys, "meta_path", finders):
        from hypothesis import HealthCheck, settings

    common = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    }
    settings.register_profile("quick", max_examples=25, **common)
    settings.register_profile("thorough", max_examples=5000, **common)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a lambda in a table of cases by its line: `test_...[line7-200]`."""
    if isinstance(val, types.FunctionType) and val.__name__ == "<lambda>":
        return f"line{val.__code__.co_firstlineno}"
    return None


def pytest_collection(session: pytest.Session) -> None:
    """Import and collect the tests without garbage collection, because everything is kept."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage less often than usual, because most objects of tests are freed at once."""
    if hasattr(gc, "set_threshold"):
        gc.set_threshold(20_000, *gc.get_threshold()[1:])
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_that_of_the_module() -> None:
    """Put aside all objects of earlier modules, so that garbage collections ignore them.

    Pytest keeps the collected tests, and a report about each test that has run.
    """
    if hasattr(gc, "freeze"):  # PyPy does not have it
        gc.freeze()


LONGEST_TEST = 120  # seconds; a test that waits in vain must fail instead of hanging


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let a test fail if it takes too long."""
    profile = item.config.getoption("--hypothesis-profile", None) or os.environ.get(
        "HYPOTHESIS_PROFILE"
    )
    if profile == "thorough" or not hasattr(signal, "setitimer"):  # as on Windows
        yield
        return

    def fail(number: int, frame: object) -> None:
        raise TimeoutError(f"{item.name} ran for more than {LONGEST_TEST} seconds")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_TEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
