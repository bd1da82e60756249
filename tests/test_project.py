import ast
import os
import shutil
import subprocess
import sys
import zipfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedhet_app", "strategies", "client_apps")
BUNDLED = {**{package: {".py"} for package in PACKAGES}, "configs": {".toml", ".yaml"}}

LEVELS = [
    {"fedhet_app", "errors", "facts", "seeding"},
    {"submodel", "mixture", "data", "models"},
    {"config", "config_checks", "config_files", "method_options", "options"}
    | {"strict_yaml", "suite_files", "suites"},
    {"wire", "training", "augmentation", "evaluation", "results", "checkpoint", "task", "versions"}
    | {"client_state", "gaussian_model", "inference", "mixture_model", "model_stack"}
    | {"capacity", "own_task", "sealed", "state_shelves", "suite_results", "task_data"},
    {"strategies", "client_apps"},
    {"queries"},
    {"server_app", "client_app", "analysis", "finished"},
    {"display", "sweep_display"},
    {"engine", "trial_step"},
    {"cli"},
]
LEVEL = {unit: level for level, units in enumerate(LEVELS) for unit in units}
SIDE_BY_SIDE = {0, 2, 3}  # units of these levels may import each other, without a cycle
EXTRA_ARROWS = {("submodel", "models")}
READ_BY_ANALYSIS = {"config", "config_checks", "checkpoint", "results", "suite_files"}
FLOWER_UNITS = {"wire", "strategies", "client_apps", "server_app", "client_app", "engine"} | {
    "client_state",
    "queries",
    "state_shelves",
}
PUBLIC_FLOWER = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
}


def unit_of(module):
    """The first part of a module's name that the layering knows."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fedhet_app" and len(parts) > 1 else parts[0]


def imports_of(source, modules):
    """The full names of all modules that a source imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or {node.module}
    return found


def reachable(module, arrows):
    """Everything that is loaded with a module: what it imports, and so on, and their packages."""
    seen, todo = set(), [module]
    while todo:
        targets = arrows.get(todo.pop(), set())
        packages = {target.rpartition(".")[0] for target in targets} - {""}
        new = (targets | packages) - seen
        seen |= new
        todo += new
    return seen


def arrow_is_allowed(source, target):
    if source == target:
        return True
    if source == "analysis":
        return LEVEL[target] <= 1 or target in READ_BY_ANALYSIS
    if LEVEL[source] == LEVEL[target]:
        return LEVEL[source] in SIDE_BY_SIDE or (source, target) in EXTRA_ARROWS
    return LEVEL[source] > LEVEL[target]


def flower_is_allowed(unit, target):
    return unit == "engine" or (unit in FLOWER_UNITS and target in PUBLIC_FLOWER)


def violations(sources):
    """Every import that the layering forbids, for sources by module name."""
    modules = set(sources)
    arrows = {module: imports_of(source, modules) for module, source in sources.items()}
    units, found = {}, []
    for module, targets in sorted(arrows.items()):
        unit = unit_of(module)
        own = {target for target in targets if target.split(".")[0] in PACKAGES}
        flower = {target for target in targets if target.split(".")[0] == "flwr"}
        unplaced = sorted(name for name in {module, *own} if unit_of(name) not in LEVEL)
        if unplaced:
            found += [f"{name} has no level" for name in unplaced]
            continue
        units.setdefault(unit, set()).update(map(unit_of, own))
        forbidden = {target for target in own if not arrow_is_allowed(unit, unit_of(target))}
        forbidden |= {target for target in flower if not flower_is_allowed(unit, target)}
        found += [f"{module} imports {target}" for target in sorted(forbidden)]
        if unit == "analysis":
            heavy = {name.split(".")[0] for name in reachable(module, arrows)} & {"torch", "flwr"}
            found += [f"{module} needs {name}" for name in sorted(heavy)]
    return found + cycle(units)


def cycle(units):
    order = TopologicalSorter({unit: targets - {unit} for unit, targets in units.items()})
    try:
        order.prepare()
    except CycleError as error:
        return [f"cycle {' -> '.join(error.args[1])}"]
    return []


def test_imports_go_downward_only():
    sources = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            sources[".".join(parts).removesuffix(".__init__")] = path.read_text()
    assert "fedhet_app.config" in sources
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fedhet_app.submodel.slicing", "from fedhet_app.models.cnn import build"),
        ("fedhet_app.data.sources", "from fedhet_app.data import partition"),
        ("fedhet_app.wire", "from flwr.app import Message"),
        ("fedhet_app.engine", "from flwr.supercore.task_identity import TaskIdentity"),
        ("fedhet_app.versions", "from fedhet_app import __version__"),
        ("strategies.base", "from flwr.serverapp.strategy import Strategy"),
        ("fedhet_app.analysis.tables.paper", "import numpy"),
        ("fedhet_app.analysis.tables.paper", "from fedhet_app.results import RunReader"),
        ("fedhet_app.cli", "def main():\n    from fedhet_app.engine import run"),
    ],
)
def test_arrows_that_are_allowed(module, source):
    assert violations({module: source}) == []


@pytest.mark.parametrize(
    ("module", "source", "finding"),
    [
        ("fedhet_app.errors", "import fedhet_app.config", "imports fedhet_app.config"),
        ("fedhet_app.data.sources", "from fedhet_app.models import cnn", "fedhet_app.models"),
        ("fedhet_app.models.cnn", "from fedhet_app.submodel import flat", "fedhet_app.submodel"),
        ("fedhet_app.config", "import fedhet_app.task", "imports fedhet_app.task"),
        ("fedhet_app.task", "def f():\n    import strategies", "imports strategies"),
        ("strategies.base", "from client_apps import CLIENTS", "imports client_apps"),
        ("client_apps.local", "import strategies.base", "imports strategies.base"),
        ("fedhet_app.server_app", "import fedhet_app.client_app", "fedhet_app.client_app"),
        ("fedhet_app.engine", "from fedhet_app import cli", "imports fedhet_app.cli"),
        ("fedhet_app.engine", "import fedhet_app.nowhere", "has no level"),
        ("fedhet_app.training", "from flwr.app import Message", "imports flwr.app"),
        ("fedhet_app.wire", "from flwr.common.typing import Scalar", "flwr.common.typing"),
        ("fedhet_app.analysis.tables.paper", "import torch.nn", "needs torch"),
        (
            "fedhet_app.analysis.tables.paper",
            "from fedhet_app import training",
            "fedhet_app.training",
        ),
        ("fedhet_app.analysis.tables.paper", "from fedhet_app import seeding", "needs torch"),
        ("fedhet_app.unplaced", "", "has no level"),
    ],
)
def test_arrows_that_are_forbidden(module, source, finding):
    others = {
        "fedhet_app.cli": "",
        "fedhet_app.nowhere": "",
        "fedhet_app.results": "",
        "fedhet_app.seeding": "import torch",
        "fedhet_app.training": "",
    }
    assert finding in "; ".join(violations({**others, module: source}))


def test_cycles_between_modules_of_one_level_are_found():
    sources = {
        "fedhet_app.wire": "import fedhet_app.results",
        "fedhet_app.results": "import fedhet_app.checkpoint",
        "fedhet_app.checkpoint": "from fedhet_app.wire import KEYS",
    }
    assert "cycle" in "; ".join(violations(sources))
    assert violations({**sources, "fedhet_app.checkpoint": ""}) == []


def project_files():
    """What git tracks, and what it would track: never build products."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted({name for name in listing.split("\0") if name and (ROOT / name).is_file()})


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists the project's files with git")
def test_the_app_bundle_holds_the_packages_and_presets_only(tmp_path):
    copy = tmp_path / "fedhet"
    files = project_files()
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    command = [Path(sys.executable).with_name("flwr"), "build"]
    built = subprocess.run(
        command, cwd=copy, env=environment, check=False, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr

    (bundle,) = copy.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        bundled = set(archive.namelist())
    paths = [PurePosixPath(name) for name in files]
    expected = {str(path) for path in paths if path.suffix in BUNDLED.get(path.parts[0], ())}
    assert {"fedhet_app/data/__init__.py", "strategies/__init__.py"} <= expected
    assert bundled == expected | {"pyproject.toml", "README.md", "LICENSE", ".info/CONTENT"}
