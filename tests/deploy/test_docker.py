"""What can be said of docker/ without an engine: every file is read, every command is parsed."""

import ipaddress
import re
import shutil
import stat
import subprocess
import sys
import tomllib

import pytest
import yaml
from composed import DOCKER, compose, document, variables_of
from cryptography import x509
from federation import MAKE_CREDENTIALS, ROOT, make_credentials
from flwr.common.config import parse_config_args
from flwr.supercore.cli.flower_superexec import _parse_args as superexec_parser
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink as superlink_parser
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode as supernode_parser
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PARSERS = {
    "flower-superlink": superlink_parser,
    "flower-supernode": supernode_parser,
    "flower-superexec": superexec_parser,
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEVICE = {"SUPERLINK": "fleet-gate:8443", "PARTITION_ID": "2", "NUM_PARTITIONS": "3"}
PLAIN = compose(DOCKER / "compose.yml")
SECURE = compose(DOCKER / "compose.yml", DOCKER / "compose.tls.yml")
HOSTS = compose(DOCKER / "server" / "compose.yml") | compose(
    DOCKER / "device" / "compose.yml", **DEVICE
)
VARIANTS = {"plain": PLAIN, "secure": SECURE, "hosts": HOSTS}
FOLDERS = [DOCKER, DOCKER / "server", DOCKER / "device"]


def flower_services(variant):
    return {n: s for n, s in VARIANTS[variant].items() if s.command[0] in PARSERS}


def options_of(service):
    program, *arguments = service.command
    parser = PARSERS[program]()
    parser.allow_abbrev = False
    return parser.parse_args(arguments)


def supernodes(variant):
    services = flower_services(variant)
    return {n: s for n, s in services.items() if s.command[0] == "flower-supernode"}


def executors(variant):
    services = flower_services(variant)
    return {n: s for n, s in services.items() if s.command[0] == "flower-superexec"}


def node_config(service):
    return parse_config_args([options_of(service).node_config])


@pytest.mark.parametrize("variant", VARIANTS)
def test_flower_takes_every_command(variant):
    assert len(flower_services(variant)) == {"plain": 8, "secure": 8, "hosts": 4}[variant]
    for service in flower_services(variant).values():
        options_of(service)


@pytest.mark.parametrize("variant", VARIANTS)
def test_apps_run_in_executors_that_come_back(variant):
    for service in VARIANTS[variant].values():
        assert service.restarts
    for service in flower_services(variant).values():
        if service.command[0] != "flower-superexec":
            assert options_of(service).isolation == "process"


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_executor_reaches_what_it_works_for(variant):
    services = VARIANTS[variant]
    served = set()
    for executor in executors(variant).values():
        host, port = options_of(executor).runtime_api_address.split(":")
        server = options_of(services[host])
        assert (server.host, server.port) == ("0.0.0.0", int(port))
        assert executor.networks & services[host].networks
        assert options_of(executor).superexec_auth_secret_file == server.superexec_auth_secret_file
        served.add(host)
    assert served == flower_services(variant).keys() - executors(variant).keys()


@pytest.mark.parametrize(("variant", "capacities"), [("plain", 3), ("secure", 3)])
def test_three_devices_of_unequal_capacity(variant, capacities):
    configs = [node_config(service) for service in supernodes(variant).values()]
    assert [config["partition-id"] for config in configs] == list(range(capacities))
    assert [config["capacity"] for config in configs] == [0.25, 0.5, 1.0]
    assert {config["num-partitions"] for config in configs} == {capacities}


def test_a_device_is_told_its_share_and_server():
    told = {**DEVICE, "NODE_CONFIG": 'capacity="auto" step-ms=50 data-path="/data/mine"'}
    service = compose(DOCKER / "device" / "compose.yml", **told)["supernode"]
    assert options_of(service).superlink == "fleet-gate:8443"
    assert node_config(service) == {
        "partition-id": 2,
        "num-partitions": 3,
        "state-dir": "/state",
        "capacity": "auto",
        "step-ms": 50,
        "data-path": "/data/mine",
    }


@pytest.mark.parametrize("variable", DEVICE)
def test_a_device_without_its_own_values_is_not_started(variable):
    text = (DOCKER / "device" / "compose.yml").read_text()
    assert re.search(rf"\$\{{{variable}:\?[^}}]+\}}", text)
    assert variables_of(DOCKER / "device" / ".env")[variable] == ""


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_is_kept_in_a_volume_of_its_own(variant):
    volumes = []
    for name, supernode in supernodes(variant).items():
        (executor,) = [
            e
            for e in executors(variant).values()
            if options_of(e).runtime_api_address.startswith(f"{name}:")
        ]
        volumes.append(executor.volumes[node_config(supernode)["state-dir"]])
    database = options_of(VARIANTS[variant]["superlink"]).database
    volumes.append(VARIANTS[variant]["superlink"].volumes[database.rpartition("/")[0]])
    volumes.append(VARIANTS[variant]["superexec-serverapp"].volumes["/results"])
    assert len(set(volumes)) == len(volumes)


def test_what_an_image_mounts_belongs_to_its_user():
    text = (DOCKER / "Dockerfile").read_text()
    owned = set(re.search(r"chown app (.+)", text)[1].split())
    for services in VARIANTS.values():
        for service in services.values():
            assert service.volumes.keys() <= owned
    assert re.search(r"^USER app$", text, re.M)


@pytest.mark.parametrize("variant", ["secure", "hosts"])
def test_without_tls_only_a_node_and_its_executor_talk(variant):
    services = flower_services(variant)
    for name, service in services.items():
        if not options_of(service).insecure:
            continue
        node = options_of(service).runtime_api_address.split(":")[0]
        assert service.networks < services[node].networks, name
        (private,) = service.networks
        assert [n for n, s in services.items() if private in s.networks] == [node, name]


@pytest.mark.parametrize(
    ("file", "networks"),
    [("compose.yml", ["device-1", "device-2", "device-3"]), ("device/compose.yml", ["device"])],
)
def test_the_network_of_an_executor_leads_nowhere(file, networks):
    path = DOCKER / file
    content = document(path, variables_of(path.with_name(".env")) | DEVICE)
    assert [n for n, keys in content["networks"].items() if keys.get("internal")] == networks


@pytest.mark.parametrize("variant", ["secure", "hosts"])
def test_code_of_users_sees_no_private_key(variant):
    for executor in executors(variant).values():
        assert {path.name for path in executor.files.values()} <= {
            "ca.crt",
            "superexec.secret",
            "fedhet-data",
        }


@pytest.mark.parametrize("variant", ["secure", "hosts"])
def test_every_secret_is_what_the_script_makes(variant, tmp_path):
    nodes = {"secure": ["supernode-1", "supernode-2", "supernode-3"], "hosts": ["mine"]}[variant]
    made = make_credentials(tmp_path / "credentials", ["superlink"], nodes)
    keys = set()
    for service in flower_services(variant).values():
        for path, file in service.files.items():
            if not path.startswith("/run/secrets/"):
                continue
            device = DOCKER / "device" / "credentials"
            here = made / "mine" if file.is_relative_to(device) else made
            there = device if file.is_relative_to(device) else DOCKER / "credentials"
            assert (here / file.relative_to(there)).is_file()
            keys |= {file} if file.name == "key" else set()
        for part in service.command:
            for path in re.findall(r"/run/secrets/\S+", part):
                assert path in service.files
    assert len(keys) == len(nodes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_gate_is_published_to_other_machines(variant):
    for name, service in VARIANTS[variant].items():
        for port in service.ports:
            if name == "fleet-gate":
                assert port == "8443:8443"
            else:
                assert ipaddress.ip_address(port.split(":")[0]).is_loopback


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_versions_are_in_the_bounds_of_the_project(folder):
    variables = variables_of(folder / ".env")
    (flwr,) = [r for r in map(Requirement, PYPROJECT["dependencies"]) if r.name == "flwr"]
    assert variables["FLWR_VERSION"] in flwr.specifier
    assert variables["PYTHON_VERSION"] in SpecifierSet(PYPROJECT["requires-python"])
    assert variables["FLWR_VERSION"] == variables_of(DOCKER / ".env")["FLWR_VERSION"]


def test_the_image_installs_what_the_project_depends_on(tmp_path):
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", "")
    code = re.search(r'python -c "(.*?)"', text)[1]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "all.txt").read_text().splitlines() == PYPROJECT["dependencies"]
    torch = [Requirement(line).name for line in (tmp_path / "torch.txt").read_text().splitlines()]
    assert sorted(torch) == ["torch", "torchvision"]


def composer():
    """Return the command of Docker Compose: the plugin, or the program that came before it."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        if subprocess.run([*command, "version"], check=False, capture_output=True).returncode == 0:
            return command
    return None


COMPOSER = composer()


@pytest.mark.skipif(COMPOSER is None, reason="needs `docker compose` or `docker-compose`")
@pytest.mark.parametrize(
    "files",
    ["compose.yml", "compose.yml compose.tls.yml", "server/compose.yml", "device/compose.yml"],
)
def test_docker_reads_what_we_read(files, tmp_path):
    shutil.copytree(DOCKER, tmp_path / "docker", ignore=shutil.ignore_patterns("credentials"))
    paths = [tmp_path / "docker" / file for file in files.split()]
    if COMPOSER == ["docker-compose"]:  # it knows every key but this one
        for path in paths:
            path.write_text(re.sub(r"^name: .*\n", "", path.read_text(), flags=re.MULTILINE))
    arguments = [part for path in paths for part in ("--file", path)]
    done = subprocess.run(
        [*COMPOSER, *arguments, "config"],
        env={"PATH": "/usr/bin:/usr/local/bin:/bin", **DEVICE},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    ours = compose(*(DOCKER / file for file in files.split()), **DEVICE)
    assert {name: keys["command"] for name, keys in read.items()} == {
        name: service.command for name, service in ours.items()
    }


def script(*arguments):
    command = [str(MAKE_CREDENTIALS), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_script_makes_what_the_owner_alone_reads(tmp_path):
    made = make_credentials(tmp_path / "c", ["superlink", "10.0.0.1", "::1"], ["one", "two"])
    public = {"ca.crt", "server.crt", "one.pub", "two.pub"}
    for path in (p for p in made.rglob("*") if p.is_file()):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o644 if path.name in public else 0o600), path
    assert (made / "one" / "key").read_text() != (made / "two" / "key").read_text()
    assert (made / ".gitignore").read_text() == "*\n"
    certificate = x509.load_pem_x509_certificate((made / "superlink/server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.1", "::1"]


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_script_adds_nodes_and_overwrites_nothing(tmp_path):
    folder = make_credentials(tmp_path / "c", ["superlink"], ["one"])
    before = content_of(folder)
    for arguments in (["server", folder, "other"], ["node", folder, "two", "one"]):
        refused = script(*arguments)
        assert refused.returncode == 2
        assert "is there already; it is not overwritten" in refused.stderr
        assert content_of(folder) == before
    assert script("node", folder, "two").returncode == 0
    after = content_of(folder)
    assert {path: after[path] for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} == {
        *("two.pub", "key", "ca.crt", "superexec.secret")
    }


def test_an_authority_whose_key_lies_elsewhere_is_not_replaced(tmp_path):
    """A new one would lock out every device."""
    folder = make_credentials(tmp_path / "c", ["superlink"], ["one"])
    (folder / ".gitignore").write_text("mine\n")
    (folder / "ca.key").rename(tmp_path / "offline")
    shutil.rmtree(folder / "superlink")
    before = content_of(folder)
    refused = script("server", folder, "superlink")
    assert refused.returncode == 2
    assert "ca.key is not here, and devices trust" in refused.stderr
    assert content_of(folder) == before
    (tmp_path / "offline").rename(folder / "ca.key")
    assert script("server", folder, "superlink").returncode == 0
    renewed = x509.load_pem_x509_certificate((folder / "superlink/server.crt").read_bytes())
    known = x509.load_pem_x509_certificate((folder / "one/ca.crt").read_bytes())
    renewed.verify_directly_issued_by(known)
    assert (folder / ".gitignore").read_text() == "mine\n"


def test_credentials_are_left_out_of_git_and_of_the_image():
    for folder in FOLDERS:
        inside = folder / "credentials" / "key"
        subprocess.run(["git", "check-ignore", "-q", inside], check=True, cwd=ROOT)
    assert (DOCKER / "Dockerfile.dockerignore").read_text() == "*\n!pyproject.toml\n"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["server", "c"], "name the hosts"),
        (["server", "c", "a b"], "'a b' is no host name or IP address"),
        (["server", "c", "*"], r"'\*' is no host name"),
        (["server", "c", "999.0.0.1"], "bad ip address"),
        (["node", "c"], "name the nodes"),
        (["node", "c", "one"], "make the server's first"),
        (["node", "c", "../one"], "names no node"),
        (["other", "c", "x"], r"server FOLDER NAME\[,NAME\.\.\.\] \| node"),
        ([], "server FOLDER"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_script_says_what_is_wrong(arguments, match, tmp_path):
    done = subprocess.run(
        [MAKE_CREDENTIALS, *arguments], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert re.search(match, done.stderr)
    assert done.stderr.startswith("error: ")
    assert not list(tmp_path.rglob("superlink"))
