"""A federation of real processes on loopback: one SuperLink, SuperNodes, and what befalls them."""

import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from fedhet_app.results import ROUNDS, read_rows

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MAKE_CREDENTIALS = ROOT / "docker" / "make-credentials.sh"
CONNECTION = "deployed"
CLIENT_APP, SERVER_APP = "flwr-clientapp", "flwr-serverapp"
ACTIVATED = "SuperNode ID:"
FAST = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}  # the only interval that can be set
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
RESTART_PATIENCE = 240  # a SuperLink misses a killed node for 60 s, and refuses its key until then
PATIENCE = 60
POLL_SECONDS = 0.1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(happened, patience, what, pause=POLL_SECONDS):
    """Poll until ``happened()`` is true, and return what it returned."""
    give_up = time.monotonic() + patience
    while not (result := happened()):
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(pause)
    return result


def processes_of(home):
    """Return every live process that was started, at any remove, with this FLWR_HOME."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("FLWR_HOME") == str(home)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


class Service:
    """One of Flower's long-running programs, with a FLWR_HOME and a log of its own.

    Args:
        name: Of its folder.
        command: Program and arguments.
        folder: Where its own is made.
        environment: Of the process; FLWR_HOME is added.
    """

    def __init__(self, name, command, folder, environment):
        self.name, self.command = name, [str(part) for part in command]
        self.home = folder / name
        self.home.mkdir(parents=True)
        self.log = folder / f"{name}.log"
        self.log.touch()
        self._environment = {**environment, "FLWR_HOME": str(self.home)}
        self._process, self._heard = None, 0

    def start(self):
        """Start the program; the log goes on where an earlier start ended."""
        assert not self.alive, f"{self.name} is running"
        self._heard = self.log.stat().st_size
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self):
        return self._process.pid

    @property
    def alive(self):
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self):
        return None if self._process is None else self._process.poll()

    def said(self):
        """Return what the program has logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._heard)
            return log.read().decode(errors="replace")

    def apps(self, program=CLIENT_APP):
        """Return the processes of the apps that run below it now."""
        found = []
        for process in processes_of(self.home):
            with suppress(psutil.Error):  # an interpreter runs the program, which is a script
                names = [Path(part).name for part in process.cmdline()[:3]]
                found += [process] if program in names else []
        return found

    def wait_for_app(self, program=CLIENT_APP, patience=PATIENCE):
        """Return the first process of an app as soon as there is one."""
        return wait_until(lambda: self.apps(program), patience, f"{program} of {self.name}")[0]

    def kill(self):
        """Send SIGKILL to the program alone: what it started has to notice by itself."""
        self._signal(signal.SIGKILL)

    def terminate(self):
        """Send SIGTERM, as a machine that shuts down does."""
        self._signal(signal.SIGTERM)

    def _signal(self, kind):
        self._process.send_signal(kind)
        self._process.wait(timeout=PATIENCE)

    def end(self):
        """Kill the program and all that it started."""
        for _ in range(50):
            left = processes_of(self.home)
            if self.alive:  # nginx hides its environment
                with suppress(psutil.Error):
                    own = psutil.Process(self.pid)
                    left += [own, *own.children(recursive=True)]
            if not left:
                return
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"{self.name}: still there: {left}")


class Node(Service):
    """A SuperNode; ``join`` waits until the SuperLink has taken it in."""

    @property
    def node_id(self):
        """What it said of its id when it was taken in."""
        return self.said().partition(ACTIVATED)[2].split()[0]

    def join(self, patience=RESTART_PATIENCE):
        """Start, again and again while the SuperLink still counts the node as online."""
        give_up = time.monotonic() + patience
        while True:
            self.start()
            wait_until(
                lambda: ACTIVATED in self.said() or not self.alive, patience, f"{self.name} joins"
            )
            if self.alive:
                return
            if time.monotonic() > give_up:
                raise AssertionError(f"{self.name} is refused:\n{self.said()}")
            time.sleep(1.0)


class Federation:
    """A SuperLink's address, the services around it, and a user's ``flwr``.

    Args:
        folder: Where homes and logs go.
        address: ``host:port`` of the SuperLink.
        certificate: Of the authority that signed the SuperLink's; ``None`` for no TLS.
        environment: What is added to that of every process.
    """

    def __init__(self, folder, address, certificate, environment):
        self.folder, self.address, self.certificate = folder, address, certificate
        self.environment = {**os.environ, **QUIET, **environment}
        self.environment["PATH"] = f"{BIN}:{os.environ['PATH']}"
        self.services, self._presets = {}, 0
        self.user = folder / "user"
        self.user.mkdir(parents=True)
        trust = f'root-certificates = "{certificate}"' if certificate else "insecure = true"
        (self.user / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
        )

    def add(self, name, command, kind=Service, environment=None):
        """Return a service that is not started yet."""
        environment = {**self.environment, **(environment or {})}
        self.services[name] = kind(name, command, self.folder, environment)
        return self.services[name]

    def wait_for_superlink(self, patience=PATIENCE):
        context = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        scheme = "https" if self.certificate else "http"

        def healthy():
            try:
                url = f"{scheme}://{self.address}/health"
                with urllib.request.urlopen(url, timeout=5, context=context) as answer:
                    return answer.status == 200
            except OSError:
                return False

        wait_until(healthy, patience, "the SuperLink answers")

    def flwr(self, *arguments):
        """Run ``flwr`` as a user does and return what it prints."""
        return self._finished(*arguments).stdout

    def _finished(self, *arguments):
        done = subprocess.run(
            [BIN / "flwr", *map(str, arguments)],
            cwd=self.user,
            env={**self.environment, "FLWR_HOME": str(self.user)},
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, shlex.join(map(str, arguments)) + done.stdout + done.stderr
        return done

    def call(self, *arguments):
        """Run ``flwr`` and return what it answers with ``--format json``."""
        answer = json.loads(self.flwr(*arguments, "--format", "json"))
        assert answer["success"], answer
        return answer

    def submit(self, options):
        """Submit a run with options by run-config key, and return its id."""
        self._presets += 1
        preset = self.folder / f"preset-{self._presets}.toml"
        preset.write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        )
        return self.call("run", ROOT, CONNECTION, "--run-config", preset)["run-id"]

    def status(self, run_id):
        """Return a run's status by ``flwr list``, such as ``finished:completed``."""
        (listed,) = self.call("list", CONNECTION, "--run-id", run_id)["runs"]
        return listed["status"]

    def wait_for_end(self, run_id, patience=240):
        """Return how a run ended."""

        def ended():
            status = self.status(run_id)
            return status if status.startswith("finished") else None

        # Every call of flwr is a process of two seconds of work, which the nodes need.
        return wait_until(ended, patience, f"run {run_id} ends", pause=3.0)

    def wait_for_round(self, directory, number, patience=120):
        """Return the rows of a results directory once it has that round's."""

        def rows():
            found = read_rows(directory / ROUNDS)
            return found if found and found[-1]["round"] >= number else None

        return wait_until(rows, patience, f"round {number} in {directory}")

    def log(self, run_id):
        """Return what ``flwr log`` shows of a run."""
        done = self._finished("log", run_id, CONNECTION, "--show")
        return done.stdout + done.stderr

    def register(self, public_key):
        """Admit a node by its public key and return its id."""
        return str(self.call("supernode", "register", public_key, CONNECTION)["node-id"])

    def online(self):
        """Return the ids of the nodes that the SuperLink counts as online."""
        nodes = self.call("supernode", "list", CONNECTION)["nodes"]
        return [node["node-id"] for node in nodes if node["status"] == "online"]

    def logs(self, lines=60):
        """Return the end of every service's log."""
        parts = []
        for service in self.services.values():
            tail = service.log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {service.log}\n" + "\n".join(tail))
        return "\n".join(parts)


@contextmanager
def open_federation(folder, address, certificate=None, environment=FAST):
    """Yield a federation without services; on the way out everything in it is ended by pid.

    Whatever raises inside takes the ends of the logs with it, as a note.
    """
    opened = Federation(Path(folder), address, certificate, environment)
    try:
        yield opened
    except BaseException as error:
        error.add_note(opened.logs())
        raise
    finally:
        for service in opened.services.values():
            service.end()


def make_credentials(folder, names, nodes):
    """Make certificates and keys as a user does with the script of ``docker/``."""
    folder = Path(folder)
    if not (folder / "superlink").exists():
        subprocess.run([MAKE_CREDENTIALS, "server", folder, ",".join(names)], check=True)
    if nodes:
        subprocess.run([MAKE_CREDENTIALS, "node", folder, *nodes], check=True)
    return folder


@contextmanager
def federation(folder, node_configs, *, secure=False, environment=FAST, start=True):
    """Yield a federation of one SuperLink and SuperNodes that start their apps themselves.

    Args:
        folder: Where homes, logs, credentials and the SuperLink's database go.
        node_configs: A node config for each node, by key; ``nodes[i]`` has the ``i``-th.
        secure: Whether with TLS and a key for each node.
        environment: What is added to that of every process; ``{}`` for Flower's default polling.
        start: Whether to start the nodes and wait until all are online.
    """
    folder, port = Path(folder), free_port()
    names = [f"node-{i}" for i in range(len(node_configs))]
    address = f"127.0.0.1:{port}"
    keys = folder / "credentials"
    if secure:
        make_credentials(keys, ["localhost", "127.0.0.1"], names)
    certificate = keys / "ca.crt" if secure else None
    with open_federation(folder, address, certificate, environment) as opened:
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", port]
        command += ["--database", folder / "state.db", *_superlink_trust(keys if secure else None)]
        opened.superlink = opened.add("superlink", command)
        opened.superlink.start()
        opened.wait_for_superlink()
        opened.nodes = []
        for name, config in zip(names, node_configs, strict=True):
            if secure:
                opened.register(keys / f"{name}.pub")
            opened.nodes.append(add_node(opened, name, config, keys / name if secure else None))
        if start:
            for node in opened.nodes:
                node.join()
        yield opened


def add_node(opened, name, config, key_folder=None):
    """Return a SuperNode that is not started yet; ``key_folder`` is what the script made for it."""
    if key_folder is None:
        trust = ["--insecure"]
    else:
        trust = ["--root-certificates", key_folder / "ca.crt"]
        trust += ["--auth-supernode-private-key", key_folder / "key"]
    command = ["flower-supernode", *trust, "--superlink", opened.address]
    command += ["--port", free_port(), "--node-config", node_config(config)]
    return opened.add(name, command, Node)


def node_config(config):
    """Return a node config as ``--node-config`` takes it."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def _superlink_trust(keys):
    if keys is None:
        return ["--insecure"]
    at = keys / "superlink"
    certificates = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", at / "server.crt"]
    return [*certificates, "--ssl-keyfile", at / "server.key", "--enable-supernode-auth"]
