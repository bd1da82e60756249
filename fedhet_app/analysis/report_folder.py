"""The folder of a report: a new report takes the place of an earlier one, and of nothing else."""

from collections.abc import Mapping
from pathlib import Path

from fedhet_app.errors import FedhetError

TITLE_END = "study: report"
"""How the first line of every report ends, by which an earlier one is known."""
PAGE, TEXT = "report.html", "report.md"
_KINDS = {"tables": (".csv", ".md"), "figures": (".png",)}


def check_folder(folder: Path) -> None:
    """Make sure that a report can be written to a folder without harm to what is there.

    A user's own files may stand beside a report, but not among its tables and figures.

    Raises:
        FedhetError: It holds files but no report, holds others among a report's, or cannot be read.
    """
    try:
        here = _inside(folder)
        if here and not _holds_report(folder):
            remedy = f"holds {here[0].name} and no report; name a new folder, or an empty one"
            raise FedhetError("--out", str(folder), remedy)
        for name, kinds in _KINDS.items():
            for path in _inside(folder / name):
                if path.is_dir() or path.suffix not in kinds:
                    remedy = f"holds {name}/{path.name}, which no report writes; move it elsewhere"
                    raise FedhetError("--out", str(folder), remedy)
    except OSError as error:
        raise _unusable(folder, error) from error


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a report's files, by their paths in the folder, and remove an earlier report's others.

    Raises:
        FedhetError: As ``check_folder``, or the folder cannot be written to.
    """
    check_folder(folder)
    try:
        for name in _KINDS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            (folder / path).write_bytes(content)
        for name in _KINDS:
            for found in _inside(folder / name):
                if f"{name}/{found.name}" not in files:
                    found.unlink()
    except OSError as error:
        raise _unusable(folder, error) from error


def _holds_report(folder: Path) -> bool:
    try:
        with (folder / TEXT).open(encoding="utf-8") as file:
            return file.readline().rstrip().endswith(TITLE_END)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def _unusable(folder: Path, error: OSError) -> FedhetError:
    remedy = f"cannot be written to ({error.strerror}); name another folder"
    return FedhetError("--out", str(folder), remedy)
