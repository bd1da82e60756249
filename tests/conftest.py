import logging
import os

import pytest


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
