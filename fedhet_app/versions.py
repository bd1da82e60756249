"""What code is running: library versions and a fingerprint of the app's own sources."""

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedhet_app import __version__

PACKAGES = ("fedhet_app", "strategies", "client_apps")
ROOT = Path(__file__).resolve().parents[1]


@cache
def code_fingerprint() -> str:
    """Return the SHA-256 (hex) of every Python source of the app's three packages.

    Server and clients compare it: a Ray worker started in another folder can import another copy
    of a package with the same name, and would train something else without a word.
    """
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, for ``config.json``."""
    libraries = ("flwr", "numpy", "ray", "torch")
    return {
        "fedhet": __version__,
        "code": code_fingerprint(),
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
    }
