"""A copy of the app whose clients do what a test asks of them while they train."""

import re
import shutil

from federation import CONNECTION, ROOT, wait_until

PARTS = ("client_apps", "configs", "fedhet_app", "strategies")
FILES = ("LICENSE", "README.md", "pyproject.toml")
PATIENCE = 400
ADDED = '''

def _hurt(procedure: Procedure) -> Procedure:
    """Say when training begins and ends, and do in between what a file asks for."""
    import time
    from pathlib import Path

    folder = Path({folder!r})

    def run(task: Task, partition: int, request: TrainRequest) -> TrainReply:
        name = f"{{partition}}-{{request.server_round}}"
        (folder / f"began-{{name}}").touch()
        asked = folder / f"fault-{{name}}"
        what, _, value = asked.read_text().partition(" ") if asked.exists() else ("", "", "")
        if what == "sleep":
            time.sleep(float(value))
        if what == "raise":
            raise ArithmeticError(value)
        reply = procedure(task, partition, request)
        (folder / f"ended-{{name}}").touch()
        return reply

    return run


CLIENTS = {{name: _hurt(procedure) for name, procedure in CLIENTS.items()}}
'''


class HurtApp:
    """The copy, in ``folder``; its clients' marks and the faults asked for lie beside it."""

    def __init__(self, folder):
        self.app, self._marks = folder / "app", folder / "marks"
        self._marks.mkdir(parents=True)
        for part in PARTS:
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, self.app / part, ignore=without)
        for file in FILES:
            shutil.copy(ROOT / file, self.app / file)
        with (self.app / "client_apps" / "__init__.py").open("a") as source:
            source.write(ADDED.format(folder=str(self._marks)))

    def submit(self, federation, preset):
        """Submit a run of this copy with a preset file, and return its id."""
        return federation.call("run", self.app, CONNECTION, "--run-config", preset)["run-id"]

    def ask(self, partition, server_round, what):
        """Let a client ``sleep 9`` (seconds) or ``raise out of order`` when it is to train."""
        (self._marks / f"fault-{partition}-{server_round}").write_text(what)

    def forget(self):
        """Take back every fault and every mark, before another run."""
        for file in self._marks.iterdir():
            file.unlink()

    def wait_for(self, mark, patience=PATIENCE):
        """Wait until a client has left a mark: ``began-1-2`` is client 1 in round 2."""
        wait_until(lambda: mark in self.marks(), patience, mark)

    def marks(self):
        """Return the marks that were left, in no order."""
        return {file.name for file in self._marks.iterdir() if re.match("began|ended", file.name)}
