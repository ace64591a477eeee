"""`pxctl daemon …`, `doctor`, `config`: the daemon itself, its installation, checks and
settings.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

import click

from pxctl import output, paths, service
from pxctl.app import Invocation, PxGroup, declare, root, timeout_option
from pxctl.client import AWAY, Document, Exit, Failure, Interrupted, Unreachable, query
from pxctl.service import Service, finding

daemon = PxGroup(
    "daemon",
    "Start, stop, restart, reload, install the daemon.",
    examples=(
        "pxctl daemon start",
        "pxctl daemon install",
        "pxctl daemon restart    # after an upgrade",
    ),
)
config = PxGroup(
    "config", "Show and check the settings.", examples=("pxctl config show", "pxctl config check")
)

_END_SECONDS = 120.0
_PAUSE_SECONDS = 0.05


@declare(daemon, "start", "start pxd")
@timeout_option(default=service.START_SECONDS)
def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start pxd in the background; returns when its socket answers.

    Where a unit of systemd is installed for it, that is started; else its own log goes to pxd.log
    in the log directory. When it runs already, that is fine.
    """
    client, did = invocation.client(), "runs already"
    try:
        document = client.get("/api/daemon")
    except Failure as failure:
        if failure.kind not in AWAY:  # none is there, or one that is on its way out
            raise
        service.start_daemon(invocation, timeout)
        document, did = client.get("/api/daemon"), "started"
    invocation.print_done(
        f"pxd {did} (pid {document['keeper']['pid']}), socket {invocation.socket_path}"
    )
    invocation.print_degraded(document)


@declare(daemon, "stop", "stop pxd")
@timeout_option("Name what is left after S seconds (exit 8).", _END_SECONDS)
def stop_daemon(invocation: Invocation, timeout: float) -> None:
    """Stop pxd and everything it holds; returns when nothing of it is left.

    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is
    fine.
    """
    on_demand, waiting = Service(invocation).is_waiting(), 0
    try:
        if on_demand:  # to ask would start it
            raise Unreachable(invocation.socket_path, "the service manager holds the socket")
        with (
            invocation.detaching("detached; pxd goes on stopping"),
            invocation.spinner("pxd", "stopping…"),
        ):
            waiting = service.stop_daemon(invocation.client(), timeout)
        on_demand = os.path.exists(invocation.socket_path)  # its own socket goes with the keeper
        invocation.print_done("pxd stopped")
    except Unreachable:
        invocation.notice(f"pxd does not run (nobody answers at {invocation.socket_path})")
    except Failure as failure:
        if failure.kind == "timed_out":  # its keeper lives, and cannot get a control plane up
            lock = os.path.join(
                paths.find_run_dir(invocation.env, system=invocation.system), "pxd.lock"
            )
            failure.hint = (
                f"kill $(cut -d' ' -f1 {lock}); the daemon's log says why it does not answer"
            )
        raise
    if waiting:
        invocation.notice(
            f"executions of pipes that wait in line: {waiting}; they run once pxd is started again"
        )
    if on_demand:
        invocation.notice("it starts again when somebody connects, unless: pxctl daemon uninstall")


@declare(daemon, "restart", "restart pxd")
@click.option(
    "--all", "everything", is_flag=True, help="Stop all children, too, and start the keeper anew."
)
@timeout_option(default=_END_SECONDS)
def restart_daemon(invocation: Invocation, everything: bool, timeout: float) -> None:
    """Replace the control plane and keep every child; returns when the new one answers.

    The keeper becomes a version that was installed meanwhile, or it is said why it cannot (exit 8).

    $ pxctl daemon restart --all
    """
    client, deadline = invocation.client(), time.monotonic() + timeout
    document = before = client.get("/api/daemon")
    with (
        invocation.detaching("detached; pxd goes on restarting"),
        invocation.spinner("pxd", "restarting…"),
    ):
        # The old control plane may go before its answer is out; what counts is the new one.
        with contextlib.suppress(Interrupted):
            client.ask("POST", query("/api/daemon/restart", [("all", everything)]), timeout=timeout)
        while all(
            document["control"][key] == before["control"][key] for key in ("pid", "started_at")
        ):
            if time.monotonic() >= deadline:
                detail = f"no new control plane answers after {timeout:g} s"
                raise Failure(detail, kind="timed_out", hint="pxctl doctor")
            time.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(Failure):
                document = client.get("/api/daemon", timeout=5.0)
    for degraded in document["degraded"]:
        if degraded["part"] == "upgrade":  # the new version did not come up
            raise Failure(degraded["detail"], kind="failed", hint=degraded["repair"])
    keeper, control = (document[name]["pid"] for name in ("keeper", "control"))
    invocation.show(document, (), f"pxd answers again (keeper {keeper}, control {control})")


@declare(daemon, "reload", "reload the settings")
def reload_daemon(invocation: Invocation) -> None:
    """Read settings and tools again; says what changed and what needs a restart."""
    answer = invocation.client().ask("POST", "/api/daemon/reload")
    invocation.print_warnings(answer)
    lines = [f"changed: {line}" for line in answer.get("changed") or []]
    # each is a sentence that names the command
    lines += [str(line) for line in answer.get("needs_restart") or []]
    lines = lines or ["reloaded; nothing changed"]
    invocation.show(answer, (), *map(invocation.complete, lines))


@declare(daemon, "status", "read the daemon's state")
def show_daemon(invocation: Invocation) -> None:
    """Show the daemon's own state; exits 3 when it does not run."""
    try:
        document = invocation.client().get("/api/daemon")
    except Unreachable as failure:
        detail, hint = f"pxd does not run: {failure.detail}", "pxctl daemon start"
        raise Failure(detail, kind="not_running", hint=hint, **failure.extra) from failure
    if invocation.print_result(document, [document["keeper"]["pid"]]):
        return

    def process(part: Document) -> str:
        again = f", restarted {part['restarts']}x" if "restarts" in part else ""
        size, age = output.size(part["rss_bytes"]), output.ago(part["started_at"])
        return f"version {part['version'] or '?'}, pid {part['pid']}, {size}, started {age}{again}"

    facts = {name: process(document[name]) for name in ("keeper", "control")}
    interrupted = [f"{one['unit']} (pid {one['pid']})" for one in document["interrupted"]]
    degraded = [f"{one['part']}: {one['detail']}" for one in document["degraded"]]
    invocation.print_members(
        {**document, "version": None}, **facts, interrupted=interrupted, degraded=degraded
    )


_kinds = click.Choice([service.SYSTEMD, service.LAUNCHD])
_platform = click.option(
    "--platform",
    type=_kinds,
    default=service.HERE,
    help="Service manager (default: this system's).",
)


@declare(daemon, "install", "install pxd")
@click.option(
    "--now/--no-start",
    "start",
    default=True,
    help="Start it now (default), or at the next boot or login.",
)
@click.option(
    "--on-demand",
    is_flag=True,
    help="The service manager listens, and starts pxd when somebody connects.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@_platform
@click.option("--force", is_flag=True, help="Overwrite a unit that differs.")
def install_service(
    invocation: Invocation,
    start: bool,
    on_demand: bool,
    only_print: bool,
    platform: str,
    force: bool,
) -> None:
    """Write, enable and start the systemd or launchd unit of pxd: the user's, or with --system the
    machine's.

    PATH, PX_HOME, PX_SOCKET and settings in the environment go into the unit. An install that fails
    leaves nothing.

    $ pxctl daemon install --on-demand
    """
    pxd = Service(invocation, platform)
    texts = pxd.texts(on_demand=on_demand)
    if only_print:
        output.write(
            "\n".join(
                f"# {path}\n{text}" if len(texts) > 1 else text for path, text in texts.items()
            )
        )
        return
    if not force:
        texts = pxd.keep_path(texts)
    pxd.check_place(texts, force=force)
    runs_there = pxd.is_active(texts)
    runs = runs_there or service.is_listened_at(invocation.socket_path)
    with invocation.spinner("pxd", "installing…"):
        written = pxd.install(texts, start=start and not runs)
    if runs and (written or not runs_there):
        command = "pxctl daemon stop && pxctl daemon start"
        invocation.notice(f"pxd runs already; for the service manager to take over: {command}")
    if linger := pxd.lingers():
        invocation.notice(f"pxd is stopped when you log out; to let it live on: {linger}")
    invocation.print_done(f"pxd is installed: {', '.join(map(str, texts))}")


@declare(daemon, "uninstall", "uninstall pxd")
@_platform
def uninstall_service(invocation: Invocation, platform: str) -> None:
    """Stop, disable and remove what `pxctl daemon install` wrote. When there is none, that is fine.

    Settings, tools, pipes, ledger and logs stay; it says where.
    """
    pxd = Service(invocation, platform)
    there = pxd.own_files()
    if not there:
        invocation.notice("no unit is installed; nothing to do")
        return
    # whose daemon it is
    invocation.env = {**invocation.env, **service.parse_unit(service.read_unit(there[0]))[1]}
    with invocation.spinner("pxd", "stopping…"):
        pxd.uninstall(there)
    kept = paths.find_data(invocation.env, system=invocation.system)
    removed = f"pxd is uninstalled: {', '.join(map(str, there))} removed"
    invocation.print_done(removed, *(f"kept: {folder}" for folder in kept))


@declare(root, "doctor", "check the daemon")
def check_all(invocation: Invocation) -> int:
    """Check everything, and name what repairs each fault. Works without a daemon, too.

    Exits 1 when a check fails; warnings do not count.
    """
    looks: dict[str, Callable[[], Iterable[Document]]] = {
        "pxd": lambda: [finding("pxd", "ok", f"its program is {service.find_pxd(invocation.env)}")],
        "service_unit": lambda: Service(invocation).check(),
        "daemon": lambda: [
            finding("daemon", "ok", f"it answers at {invocation.socket_path}"),
            *invocation.client().get("/api/doctor").get("checks", []),
            *_version_check(invocation),
        ],
    }
    checks: list[Document] = []
    for name, look in looks.items():
        try:
            checks += look()
        except (Failure, OSError) as error:
            repair = invocation.next_step(error) if isinstance(error, Failure) else None
            checks.append(finding(name, "fail", str(error), repair))
            if name == "daemon":  # one that answers knows more
                checks.append(service.check_ledger(invocation))
    result = {"schema": "px.doctor/1", "checks": checks}
    if not invocation.print_result(
        result, (one["name"] for one in checks if one["status"] != "ok")
    ):
        for one in checks:
            repair = f"repair: {one['repair']}" if one.get("repair") else None
            invocation.print_check(one["status"], f"{one['name']}: {one['detail']}", repair)
    return Exit.FAILED if any(one["status"] == "fail" for one in checks) else Exit.OK


def _version_check(invocation: Invocation) -> Iterable[Document]:
    """Yield a warning where the daemon that runs is of another version than this client."""
    ours = paths.own_version()
    theirs = None
    with contextlib.suppress(Failure):
        theirs = invocation.client().get("/api/daemon").get("version")
    if theirs not in {None, ours}:
        yield finding(
            "version", "warn", f"pxd {theirs} runs; this is {ours}", "pxctl daemon restart"
        )


def _print_of_pxd(invocation: Invocation, flag: str) -> None:
    output.write(service.ask_pxd(invocation, flag, *(["--json"] if invocation.json else [])))


@declare(config, "show", "show the settings")
def show_settings(invocation: Invocation) -> None:
    """Show every setting, its value and where it comes from. Works without a daemon."""
    _print_of_pxd(invocation, "--show-config")


@declare(config, "check", "check the settings")
def check_settings(invocation: Invocation) -> None:
    """Check the settings files: file, line, key and nearest match of each fault; exits 1 when
    there is one.
    """
    _print_of_pxd(invocation, "--check-config")
