"""What the tests share: the hypothesis profiles, and an end to what hangs.

`pytest` is quick; `pytest --hypothesis-profile=thorough` takes its time to look for
counterexamples. Other tests beside this file, such as those of the tutorial, do without hypothesis.
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
    # As it is: pytest would rewrite the assertions of its hundred modules at each start where byte
    # code may not be written.
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
    """Import and collect tests without garbage collections, because all of it is kept."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect less often than usual: tests make much, and it dies at once."""
    if hasattr(gc, "set_threshold"):
        gc.set_threshold(20_000, *gc.get_threshold()[1:])
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_that_of_the_module() -> None:
    """Put aside what is kept from before, so that no garbage collection looks at it again.

    Pytest keeps the collected tests, and a report of each that has run.
    """
    if hasattr(gc, "freeze"):  # PyPy has none
        gc.freeze()


LONGEST_TEST = 120  # seconds; a test that waits for what never comes must fail, and not hang


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let no test hang."""
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
