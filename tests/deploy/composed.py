"""The services of docker/'s compose files: as they are, and as processes on loopback."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from federation import ROOT, free_port

DOCKER = ROOT / "docker"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::\?[^}]*)?\}")
_PORT = re.compile(r"(?:--port=|listen )(\d+)")


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One service of compose files, merged as `docker compose` does with several ``--file``.

    Attributes:
        command: Program and arguments.
        environment: By name.
        ports: Published ones.
        files: Of the host, by their path in the container: secrets and bind mounts.
        volumes: Names of volumes, by where they are mounted.
        networks: Those that it is in.
        restarts: Whether it is started again after a failure.
    """

    command: list[str]
    environment: dict[str, str]
    ports: list[str]
    files: dict[str, Path]
    volumes: dict[str, str]
    networks: set[str]
    restarts: bool


def variables_of(path):
    """Return what a ``.env`` file sets."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: value.strip("'") for name, value in (line.split("=", 1) for line in lines)}


def document(path, variables):
    """Return a compose file with its variables filled in; a missing one is an error."""
    return yaml.safe_load(_VARIABLE.sub(lambda found: variables[found["name"]], path.read_text()))


def compose(*paths, **variables):
    """Return the services of compose files by name, with the ``.env`` beside the first."""
    known = variables_of(paths[0].with_name(".env")) | variables
    services, files = {}, {}
    for path in paths:
        content = document(path, known)
        for name, keys in content["services"].items():
            _merge(services.setdefault(name, {}), keys)
        for name, secret in content.get("secrets", {}).items():
            files[f"/run/secrets/{name}"] = (path.parent / secret["file"]).resolve()
    return {name: _composed(keys, files, paths[0].parent) for name, keys in services.items()}


def _merge(into, keys):
    for key, value in keys.items():
        if isinstance(value, dict):
            into[key] = into.get(key, {}) | value
        elif isinstance(value, list) and key != "command":
            into[key] = into.get(key, []) + value
        else:
            into[key] = value


def _composed(keys, secrets, folder):
    paths = [f"/run/secrets/{name}" for name in keys.get("secrets", [])]
    files, volumes = {path: secrets[path] for path in paths}, {}
    for mount in keys.get("volumes", []):
        source, target = mount.split(":")[:2]
        if source.startswith((".", "/")):
            files[target] = (folder / source).resolve()
        else:
            volumes[target] = source
    return Composed(
        command=keys["command"],
        environment=keys.get("environment", {}),
        ports=keys.get("ports", []),
        files=files,
        volumes=volumes,
        networks=set(keys.get("networks", ["default"])),
        restarts=keys.get("restart") == "unless-stopped",
    )


class Loopback:
    """What the containers' host names, ports and paths are on this machine.

    Args:
        services: From ``compose``; of several files together where names do not clash.
        folder: Where volumes become folders, and configuration files are written anew.
        credentials: Folders in the place of the files' ``credentials``, by those.
    """

    def __init__(self, services, folder, credentials):
        self.services, self.folder, self._credentials = services, folder, credentials
        folder.mkdir(parents=True, exist_ok=True)
        self.addresses = {}
        for name, service in services.items():
            configurations = [f.read_text() for f in service.files.values() if f.suffix == ".conf"]
            for port in _PORT.findall(" ".join([*service.command, *configurations])):
                self.addresses[f"{name}:{port}"] = f"127.0.0.1:{free_port()}"

    def command(self, name):
        """Return a service's command with what it names here."""
        return [self._translate(part, name) for part in self.services[name].command]

    def _volumes(self, name):
        """Return a service's volumes, and those of the executors that work for it."""
        ends = f"--runtime-api-address={name}:"
        executors = [s for s in self.services.values() if any(ends in c for c in s.command)]
        return {t: v for s in (*executors, self.services[name]) for t, v in s.volumes.items()}

    def _translate(self, text, name):
        for target, volume in self._volumes(name).items():
            here = self.folder / volume
            here.mkdir(exist_ok=True)
            text = re.sub(rf"(?<![\w/]){target}\b", str(here), text)
        for path, file in self.services[name].files.items():
            if path in text:
                text = text.replace(path, str(self._file(file, name)))
        for there, here in self.addresses.items():
            host, port = there.split(":")
            text = text.replace(there, here)
            if host == name:
                text = text.replace(f"--port={port}", f"--port={here.partition(':')[2]}")
                text = text.replace(f"listen {port}", f"listen {here}")
        return text.replace("--host=0.0.0.0", "--host=127.0.0.1")

    def _file(self, file, name):
        for there, here in self._credentials.items():
            if file.is_relative_to(there):
                return here / file.relative_to(there)
        if file.suffix == ".conf":
            rewritten = self.folder / file.name
            text = file.read_text().replace("/tmp/", f"{self.folder}/")
            # A master that is root gives its work to nobody, who may not enter this folder.
            rewritten.write_text(f"user root;\n{self._translate(text, name)}")
            return rewritten
        return file
