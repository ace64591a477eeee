"""`pxctl daemon …`, `doctor`, `config`, `completion`, `version`: the daemon itself, and its installation."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

import click

from pxctl import daemon_process, output
from pxctl.app import UNKNOWN_VERSION, declare, declare_group, own_version, root
from pxctl.client import FAILED, INACTIVE, OK, TIMED_OUT, Failure, Interrupted, Silent, Unreachable, query
from pxctl.completion import SHELLS, script
from pxctl.output import BY_STATE, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pxctl.app import Invocation

    Document = dict[str, Any]

daemon = declare_group("daemon", "Start, stop, restart, reload, install the daemon.")
config = declare_group("config", "Show and check the settings.")

_END_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
_SUN_PATH = 108 if sys.platform == "linux" else 104
"""Bytes of sockaddr_un.sun_path with the NUL that ends it: unix(7), sys/un.h of macOS."""


def _timeout(default: float, help_text: str = "Give up after S seconds (exit 7).") -> Callable[[Any], Any]:
    kind = click.FloatRange(min=0, min_open=True)
    return click.option("--timeout", type=kind, default=default, show_default=True, metavar="S", help=help_text)


@declare(daemon, "start")
@_timeout(daemon_process.START_SECONDS)
def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start pxd in the background; returns when its socket answers.

    Its own log goes to pxd.log in the log directory. When it runs already, that is fine.

    Effect: modifying: starts the daemon unless it runs
    $ pxctl daemon start
    $ PX_HOME=/tmp/px pxctl daemon start
    $ sudo pxctl daemon start --system
    """
    invocation.action = "start pxd"
    running = _pid(invocation)
    if running is None:
        daemon_process.start_daemon(invocation, timeout)
    pid, socket = running or _pid(invocation), invocation.socket_path
    facts = {"started": running is None, "pid": pid, "socket": socket, "log": invocation.places.log_file}
    if not invocation.print_result({"schema": "px.daemon_start/1", **facts}, [pid]):
        invocation.print(f"pxd {'runs already' if running else 'started'} (pid {pid}), socket {socket}")


def _pid(invocation: Invocation) -> int | None:
    try:
        document = invocation.client().get("/api/daemon").document
    except Failure as failure:
        if failure.kind in {"unreachable", "interrupted", "shutdown"}:
            return None
        raise
    pid = (document.get("keeper") or {}).get("pid")
    return pid if isinstance(pid, int) else None


@declare(daemon, "stop")
@_timeout(_END_SECONDS, "Name what is left after S seconds (exit 8).")
def stop_daemon(invocation: Invocation, timeout: float) -> None:
    """Stop pxd and everything it holds; returns when nothing of it is left.

    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is fine.

    Effect: modifying: stops every unit, then the daemon
    $ pxctl daemon stop
    $ pxctl daemon stop --timeout 20
    $ pxctl daemon stop --json
    """
    invocation.action = "stop pxd"
    client, was_running = invocation.client(), True
    try:
        with invocation.spinner("pxd", "stopping…"):
            seen = daemon_process.sight_all(client)
            daemon_process.ask_to_stop(client)
            daemon_process.await_end(seen, timeout)
    except Unreachable:
        invocation.notice(f"pxd does not run (nobody answers at {invocation.socket_path})")
        was_running = False
    except KeyboardInterrupt:
        invocation.warn("\npxctl: detached; pxd goes on stopping")
        raise Silent(FAILED) from None
    result = {"schema": "px.daemon_stop/1", "was_running": was_running, "survivors": []}
    if not invocation.print_result(result, ()) and was_running:
        invocation.print("pxd stopped")


@declare(daemon, "restart")
@click.option("--all", "everything", is_flag=True, help="Stop all children, too, and start the keeper anew.")
@_timeout(_END_SECONDS)
def restart_daemon(invocation: Invocation, everything: bool, timeout: float) -> None:
    """Replace the control plane and keep every child; returns when the new one answers.

    When pxd does not run, it is started.

    Effect: modifying: replaces the control plane; with --all stops every unit and starts pxd anew
    $ pxctl daemon restart
    $ pxctl daemon restart --all
    """
    invocation.action = "restart pxd"
    client = invocation.client()
    try:
        before = client.get("/api/daemon").document
    except Unreachable:
        invocation.notice("pxd does not run; starting it")
        daemon_process.start_daemon(invocation, timeout)
        document = client.get("/api/daemon").document
    else:
        try:
            with invocation.spinner("pxd", "restarting…"):
                # The old control plane may go before its answer is out; what counts is the new one.
                with contextlib.suppress(Interrupted):
                    client.ask("POST", query("/api/daemon/restart", [("all", everything)]), timeout=timeout)
                document = _await_new(invocation, before, timeout)
        except KeyboardInterrupt:
            invocation.warn("\npxctl: detached; pxd goes on restarting")
            raise Silent(FAILED) from None
    keeper, control = document.get("keeper") or {}, document.get("control") or {}
    if not invocation.print_result(document, ()):
        invocation.print(f"pxd answers again (keeper {keeper.get('pid')}, control {control.get('pid')})")


def _await_new(invocation: Invocation, before: Document, timeout: float) -> Document:
    """Return the daemon's document once another control plane than before answers."""

    def mark(document: Document) -> tuple[Any, Any]:
        control = document.get("control") or {}
        return control.get("pid"), control.get("started_at")

    client, deadline = invocation.client(), time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(Failure):
            document: Document = client.get("/api/daemon", timeout=5.0).document
            if mark(document) != mark(before) and daemon_process.answers(client, timeout=5.0):
                return document
        time.sleep(_PAUSE_SECONDS)
    detail = f"no new control plane answers after {timeout:g} s"
    raise Failure(detail, kind="timed_out", hint="pxctl doctor", exit_code=TIMED_OUT)


@declare(daemon, "reload")
def reload_daemon(invocation: Invocation) -> None:
    """Read settings and tools again; says what changed and what needs a restart.

    Effect: modifying: takes over changed settings; broken ones are refused and the old ones kept
    $ pxctl daemon reload
    $ pxctl config check && pxctl daemon reload
    """
    invocation.action = "reload the settings"
    answer = invocation.client().ask("POST", "/api/daemon/reload")
    if invocation.json:
        invocation.print_json(answer)
        return
    invocation.warn(*(f"warning: {warning}" for warning in answer.document.get("warnings") or []))
    if invocation.quiet:
        return
    changed, later = answer.document.get("changed") or [], answer.document.get("needs_restart") or []
    invocation.print(*(f"changed: {line}" for line in changed))
    invocation.print(*(f"needs `pxctl daemon restart`: {line}" for line in later))
    if not changed:
        invocation.print("reloaded; nothing changed")


@declare(daemon, "status")
def show_daemon(invocation: Invocation) -> None:
    """Show the daemon's own state; exits 3 when it does not run.

    $ pxctl daemon status
    $ pxctl daemon status --json
    """
    invocation.action = "read the daemon's state"
    try:
        answer = invocation.client().get("/api/daemon")
    except Unreachable as failure:
        detail, hint = f"pxd does not run: {failure.detail}", "pxctl daemon start"
        raise Failure(detail, kind="not_running", hint=hint, exit_code=INACTIVE, **failure.extra) from failure
    document = answer.document
    keeper, control = document.get("keeper") or {}, document.get("control") or {}
    if invocation.print_result(answer, [keeper.get("pid")]):
        return

    def process(part: Document) -> str:
        return (
            f"pid {part.get('pid')}, {output.size(part.get('rss_bytes'))}, started {output.ago(part.get('started_at'))}"
        )

    facts = [
        ("version", document.get("version")),
        ("socket", document.get("socket")),
        ("keeper", process(keeper)),
        ("control", process(control) + f", restarted {control.get('restarts') or 0}x"),
        ("kill", document.get("kill_rung")),
        ("memory", document.get("memory_rung")),
        ("state", "stopping" if document.get("stopping") else None),
    ]
    facts += [("interrupted", f"{one.get('unit')} (pid {one.get('pid')})") for one in document.get("interrupted") or []]
    facts += [("degraded", f"{one.get('part')}: {one.get('detail')}") for one in document.get("degraded") or []]
    invocation.print_facts(facts)


# -- as a service -----------------------------------------------------------------------------------------------------

_platform = click.option(
    "--platform",
    type=click.Choice(["auto", daemon_process.SYSTEMD, daemon_process.LAUNCHD]),
    default="auto",
    show_default=True,
    callback=lambda _, __, value: (
        value if value != "auto" else daemon_process.LAUNCHD if sys.platform == "darwin" else daemon_process.SYSTEMD
    ),
    help="Service manager.",
)


@declare(daemon, "install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@_platform
@click.option("--force", is_flag=True, help="Overwrite a unit that differs.")
def install_service(invocation: Invocation, only_print: bool, platform: str, force: bool) -> None:
    """Write and enable the systemd or launchd unit of pxd: the user's, or with --system the machine's.

    Effect: modifying: writes one unit file, enables and starts it; --print changes nothing
    $ pxctl daemon install
    $ pxctl daemon install --print
    $ sudo pxctl daemon install --system
    $ pxctl daemon install --print --platform launchd
    """
    invocation.action = "install pxd"
    text = daemon_process.unit_text(invocation, platform)
    path = daemon_process.unit_path(invocation, platform, text)
    if only_print:
        if invocation.json:
            facts = {"platform": platform, "path": str(path), "text": text}
            invocation.print_json({"schema": "px.daemon_unit/1", **facts})
        else:
            output.write(text)
        return
    written = daemon_process.write_unit(path, text, force=force)
    invocation.notice(f"{'wrote' if written else 'found'} {path}")
    by_hand = daemon_process.answers(invocation.client())
    try:
        daemon_process.turn_on(invocation, platform, path, now=not by_hand)
    except Failure as failure:
        failure.detail = f"{path} is written, but not enabled: {failure.detail}"
        raise
    if by_hand:
        advice = "for the service manager to take over: pxctl daemon stop, then start the unit"
        invocation.notice(f"pxd runs already; {advice}")
    result = {"schema": "px.daemon_install/1", "platform": platform, "path": str(path), "written": written}
    if not invocation.print_result(result, [path]):
        invocation.print(f"pxd is installed: {path}")


@declare(daemon, "uninstall")
@click.option("--print", "only_print", is_flag=True, help="Print what would be removed and change nothing.")
@_platform
def uninstall_service(invocation: Invocation, only_print: bool, platform: str) -> None:
    """Disable and remove the unit that `pxctl daemon install` wrote. When there is none, that is fine.

    Effect: modifying: stops and disables the unit, removes its file; tools, settings and ledger stay
    $ pxctl daemon uninstall
    $ pxctl daemon uninstall --print
    $ sudo pxctl daemon uninstall --system
    """
    invocation.action = "uninstall pxd"
    text = daemon_process.unit_text(invocation, platform) if platform == daemon_process.LAUNCHD else ""
    path = daemon_process.unit_path(invocation, platform, text)
    if only_print:
        invocation.print(path)
        return
    removed = path.exists()
    if removed:
        daemon_process.turn_off(invocation, platform, path)
    else:
        invocation.notice(f"there is no {path}; nothing to do")
    result = {"schema": "px.daemon_uninstall/1", "platform": platform, "path": str(path), "removed": removed}
    if (invocation.json or removed) and not invocation.print_result(result, [path]):
        invocation.print(f"pxd is uninstalled: {path} removed")


# -- what works without a daemon, too ---------------------------------------------------------------------------------


@declare(root, "doctor")
def check_all(invocation: Invocation) -> int:
    """Check everything, and name the one command that repairs each fault. Works without a daemon, too.

    Exits 1 when a check fails; warnings do not count.

    $ pxctl doctor
    $ pxctl doctor --json
    """
    invocation.action = "check the daemon"
    checks = [
        {"name": name, "status": status, "detail": detail, "repair": repair}
        for name, status, detail, repair in _checks(invocation)
    ]
    result = {"schema": "px.doctor/1", "checks": checks}
    if not invocation.print_result(result, (check["name"] for check in checks if check["status"] != "ok")):
        for check in checks:
            word = invocation.paint(f"{check['status']:<4}", BY_STATE.get(str(check["status"])))
            invocation.print(f"{word}  " + clean(f"{check['name']}: {check['detail']}"))
            if check["repair"]:
                invocation.print(f"      repair: {clean(str(check['repair']))}")
    return FAILED if any(check["status"] == "fail" for check in checks) else OK


def _checks(invocation: Invocation) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield name, status, detail, repair: what can be judged from here alone, then the daemon's own checks."""
    try:
        path = invocation.places.socket
    except Failure as failure:
        yield "places", "fail", failure.detail, failure.hint
    else:
        try:
            yield "pxd", "ok", f"the daemon's program is {daemon_process.find_pxd(invocation.env)}", None
        except Failure as failure:
            yield "pxd", "fail", failure.detail, failure.hint
        size, most = len(os.fsencode(path)), _SUN_PATH - 1
        if size <= most:
            yield "socket path", "ok", f"{path} has {size} of at most {most} bytes", None
        else:
            detail = f"{path} has {size} bytes; this platform takes at most {most}"
            yield "socket path", "fail", detail, "export PX_SOCKET=~/pxd.sock"
    try:
        checks = invocation.client().get("/api/doctor").document.get("checks") or []
    except Failure as failure:
        yield "daemon", "fail", failure.detail, failure.hint
        return
    yield "daemon", "ok", f"answers at {invocation.socket_path}", None
    for one in checks:
        yield str(one.get("name")), str(one.get("status")), str(one.get("detail")), one.get("repair") or None


@declare(config, "show")
def show_settings(invocation: Invocation) -> None:
    """Show every setting, its value and where it comes from; with -q the keys only.

    Works without a daemon.

    $ pxctl config show
    $ pxctl config show --json
    $ PX_TOOLS__WARM_KEEP_MAX=9 pxctl config show
    """
    invocation.action = "show the settings"
    if not invocation.quiet or invocation.json:
        output.write(daemon_process.ask_pxd(invocation, "--show-config", *(["--json"] if invocation.json else [])))
        return
    settings = json.loads(daemon_process.ask_pxd(invocation, "--show-config", "--json"))["settings"]
    invocation.print(*(setting["key"] for setting in settings))


@declare(config, "check")
def check_settings(invocation: Invocation) -> None:
    """Check the settings files: file, line, key and nearest match of each fault; exits 1 when there is one.

    Works without a daemon.

    $ pxctl config check
    $ pxctl config check --json
    """
    invocation.action = "check the settings"
    output.write(daemon_process.ask_pxd(invocation, "--check-config", *(["--json"] if invocation.json else [])))


@declare(root, "completion")
@click.argument("shell", type=click.Choice(SHELLS))
def print_script(invocation: Invocation, shell: str) -> None:
    """Print a completion script. Names of tools and units are asked of the running daemon, in at most 0.1 s.

    $ pxctl completion bash > ~/.local/share/bash-completion/completions/pxctl
    $ pxctl completion zsh > ~/.zfunc/_pxctl    # a directory of $fpath
    $ pxctl completion fish > ~/.config/fish/completions/pxctl.fish
    $ eval "$(pxctl completion bash)"    # this shell only
    """
    del invocation
    output.write(script(shell, root))


@declare(root, "version")
def show_version(invocation: Invocation) -> None:
    """Show the version of the client, and that of the daemon when it answers.

    $ pxctl version
    $ pxctl version --json
    """
    ours, theirs = own_version(), None
    with contextlib.suppress(Failure):
        theirs = invocation.client().get("/api/daemon", timeout=5.0).document.get("version")
    if not invocation.print_result({"schema": "px.version/1", "client": ours, "daemon": theirs}, [ours]):
        invocation.print(f"pxctl {ours}", f"pxd {theirs}" if theirs else "pxd not running")
    if theirs and ours not in {theirs, UNKNOWN_VERSION} and not invocation.json:
        invocation.notice("pxctl: client and daemon differ; bring the daemon up to date: pxctl daemon restart --all")
