"""Runs a federation with Flower: simulated clients on this machine, or nodes of a SuperLink.

Flower runs an app from a folder, which is written here and only imports Killick's apps. For a simulation
a SuperLink of its own is started on the loopback interface and ended with it. Flower's telemetry
is off.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from killick import __version__
from killick.errors import KillickError, OptionError, ProcessError, import_library
from killick.federated.federation_settings import FederationPlan
from killick.federated.server_state import load_state

_APP = """\
from killick.federated import flower_apps

client_app = flower_apps.client_app
server_app = flower_apps.server_app
"""
_PROJECT = """\
[project]
name = "killick-federation"
version = "{version}"
dependencies = []

[tool.flwr.app]
publisher = "killick"

[tool.flwr.app.components]
serverapp = "federation_app:server_app"
clientapp = "federation_app:client_app"

[tool.flwr.app.config]
plan = {plan}
"""
_SUPERLINK = '[superlink]\ndefault = "killick"\n[superlink.killick]\naddress = {}\n{}\n'
_DONE = "finished:completed"
_START_SECONDS = 60
_END_SECONDS = 10


def run_flower(
    plan: FederationPlan,
    superlink: str | None = None,
    *,
    certificates: Path | None = None,
    quiet: bool = False,
) -> None:
    """Run a federation with Flower, and wait for its end.

    Args:
        plan: What to do. With a SuperLink its folder is on that machine.
        superlink: Address, as HOST:PORT; None: simulated clients here.
        certificates: Root certificates of the SuperLink, a PEM file; None: without encryption.
        quiet: Print nothing.

    Raises:
        KillickError: What stopped the federation.
    """
    if superlink is not None:
        _check_reachable(superlink)
    import_library("flwr", "federated", "--engine flower")
    from killick.federated.flower_apps import PROBLEM

    load_state(plan)  # refuses a folder with another federation before anything is started
    (plan.output / PROBLEM).unlink(missing_ok=True)
    safety = "insecure = true"
    if certificates is not None:
        safety = f"root-certificates = {json.dumps(str(certificates.absolute()))}"
    with tempfile.TemporaryDirectory(prefix="killick-flower-") as home:
        environment = _environment(Path(home))
        app = write_app(plan, Path(home) / "app")
        with _superlink(superlink, environment) as address:
            settings = _SUPERLINK.format(json.dumps(address), safety)
            (Path(home) / "config.toml").write_text(settings)
            clients = plan.federation.clients if superlink is None else None
            status = _run_app(app, environment, clients, quiet=quiet)
    if (plan.output / PROBLEM).exists():
        text = (plan.output / PROBLEM).read_text(encoding="utf-8")
        (plan.output / PROBLEM).unlink()
        if not any(plan.output.iterdir()):
            plan.output.rmdir()
        raise KillickError(text)
    state = load_state(plan)
    rounds = 0 if state is None else len(state.records)
    if status != _DONE or (superlink is None and rounds < plan.federation.rounds):
        known = f" after {rounds} of {plan.federation.rounds} rounds" if superlink is None else ""
        raise ProcessError(
            f"Flower's run ended{known} with status {status}. The same command goes on from there."
        )


def _run_app(app: Path, environment: dict[str, str], simulated: int | None, *, quiet: bool) -> str:
    """Start the app, show its log until it ends, and return Flower's status of the run."""
    output = subprocess.DEVNULL if quiet else None

    def ask(*words: str) -> dict[str, Any]:
        words = (_command("flwr"), *words, "--format", "json")
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"error-message": done.stderr}
        if not answer.get("success"):
            why = " ".join(str(answer.get("error-message")).split())
            raise ProcessError(f"flwr {words[1]} failed: {why}")
        return answer

    options = []
    if simulated is not None:
        options = ["--federation-config", f"num-supernodes={simulated}"]
    number = ask("run", str(app), "killick", *options)["run-id"]
    log = [_command("flwr"), "log", number, "killick", "--stream"]
    subprocess.run(log, env=environment, stdout=output, stderr=output, check=False)
    status: str = ask("ls", "killick", "--run-id", number)["runs"][0]["status"]
    return status


def write_app(plan: FederationPlan, folder: Path) -> Path:
    """A folder that `flwr run` takes."""
    folder.mkdir()
    (folder / "federation_app.py").write_text(_APP)
    # A text in JSON is one in TOML.
    project = _PROJECT.format(version=__version__, plan=json.dumps(plan.to_json()))
    (folder / "pyproject.toml").write_text(project)
    return folder


def _environment(home: Path) -> dict[str, str]:
    """With Flower's files in a folder of their own."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PATH": programs,
    }


def _command(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise OptionError(f"--superlink takes HOST:PORT, found {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as problem:
        raise OptionError(
            f"no SuperLink at {address} ({problem}). Start one there: flower-superlink --insecure"
            f" --host {host} --port {port}."
        ) from None


@contextmanager
def _superlink(address: str | None, environment: dict[str, str]) -> Iterator[str]:
    """The address of a SuperLink: the given one, or one that simulates and ends with this block."""
    if address is not None:
        yield address
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [_command("flower-superlink"), "--insecure", "--simulation"]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        _end(process, environment["FLWR_HOME"])


def _end(process: "subprocess.Popen[bytes]", home: str) -> None:
    """End a SuperLink and all that it started, also what has left its group, as Ray's processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        for pid in _processes_of(home):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end:
            if process.poll() is not None and not _processes_of(home):
                return
            time.sleep(0.1)


def _processes_of(home: str) -> list[int]:
    """Processes with Flower's files in this folder; none where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"FLWR_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Until the SuperLink listens."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise ProcessError(
        "the SuperLink of the simulation did not start: flower-superlink --insecure."
    )
