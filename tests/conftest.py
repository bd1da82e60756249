import logging
import os
import signal
import sys

import pytest
from hypothesis import settings

from fedhet_app import cli

# How long an example takes is not tested: a busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep decoded data of the tests apart from the user's, and make it once per session."""
    before = os.environ.get("FEDHET_CACHE")
    os.environ["FEDHET_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["FEDHET_CACHE"]
    else:
        os.environ["FEDHET_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def _quiet_flower():
    """Leave only the app's own log in the report of a failed test."""
    logging.getLogger("flwr").setLevel(logging.WARNING)


@pytest.fixture
def fedhet(monkeypatch, capsys):
    """Call the command line in this process; return status, output and error output."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedhet", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return left.value.code or 0, captured.out, captured.err

    handler = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, handler)
