"""`pxctl daemon …`, `doctor`, `config`, `completion`, `version`: the daemon itself, and its installation."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

import click

from pxctl import daemon_process, output, service
from pxctl.app import READS, SECONDS, UNKNOWN_VERSION, declare, own_version
from pxctl.client import query
from pxctl.completion import SHELLS, script
from pxctl.daemon_process import answers, ask_pxd, ask_to_stop, await_end, sight_all, survived
from pxctl.failure import FAILED, INACTIVE, OK, TIMED_OUT, Failure, Interrupted, Silent, Unreachable
from pxctl.output import BY_STATE, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.app import Invocation


@declare(
    "start",
    effect="modifying: starts the daemon unless it runs",
    examples=["pxctl daemon start", "PX_HOME=/tmp/px pxctl daemon start", "sudo pxctl daemon start --system"],
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=daemon_process.START_SECONDS,
    show_default=True,
    metavar="S",
    help="Give up after S seconds (exit 7).",
)
def start_daemon(invocation: Invocation, timeout: float) -> None:
    """Start pxd, detached; returns when its socket answers.

    Its own log goes to pxd.log in the log directory. When it runs already, that is fine.
    """
    invocation.action = "start pxd"
    running = _pid(invocation)
    if running is None:
        daemon_process.start_daemon(invocation, timeout)
    pid = running or _pid(invocation)
    if invocation.json:
        invocation.document(
            {
                "schema": "px.daemon_start/1",
                "started": running is None,
                "pid": pid,
                "socket": invocation.socket_path,
                "log": invocation.places.log_file,
            }
        )
    elif invocation.quiet:
        invocation.say(str(pid))
    else:
        invocation.say(f"pxd {'runs already' if running else 'started'} (pid {pid}), socket {invocation.socket_path}")


def _pid(invocation: Invocation) -> int | None:
    try:
        document = invocation.client().get("/api/daemon").document
    except Failure as failure:
        if failure.kind in {"unreachable", "interrupted", "shutdown"}:
            return None
        raise
    pid = (document.get("keeper") or {}).get("pid")
    return pid if isinstance(pid, int) else None


_SECONDS = 120.0
_SUN_PATH = 108 if sys.platform == "linux" else 104
"""Bytes of sockaddr_un.sun_path with the NUL that ends it: unix(7), sys/un.h of macOS."""


@declare(
    "stop",
    effect="modifying: stops every unit, then the daemon",
    examples=["pxctl daemon stop", "pxctl daemon stop --timeout 20", "pxctl daemon stop --json"],
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=_SECONDS,
    show_default=True,
    metavar="S",
    help="Name what is left after S seconds (exit 8).",
)
def stop_daemon(invocation: Invocation, timeout: float) -> int:
    """Stop pxd and everything it holds; returns when nothing of it is left.

    What is left in spite of that is named, and the exit code is 8. Stopping what does not run is fine.
    """
    invocation.action = "stop pxd"
    client = invocation.client()
    try:
        seen = sight_all(client)
        ask_to_stop(client)
    except Unreachable:
        invocation.notice(f"pxd does not run (nobody answers at {invocation.socket_path})")
        return _tell(invocation, was_running=False)
    try:
        left = await_end(seen, timeout)
    except KeyboardInterrupt:
        invocation.warn("\npxctl: detached; pxd goes on stopping")
        raise Silent(FAILED) from None
    if left:
        raise survived(left)
    return _tell(invocation, was_running=True)


def _tell(invocation: Invocation, *, was_running: bool) -> int:
    told = {"schema": "px.daemon_stop/1", "was_running": was_running, "survivors": []}
    if not invocation.told(told, ()) and was_running:
        invocation.say("pxd stopped")
    return OK


_PAUSE_SECONDS = 0.05


@declare(
    "restart",
    effect="modifying: replaces the control plane; with --all stops every unit and starts pxd anew",
    examples=["pxctl daemon restart", "pxctl daemon restart --all"],
)
@click.option("--all", "everything", is_flag=True, help="Stop all children, too, and start the keeper anew.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=_SECONDS,
    show_default=True,
    metavar="S",
    help="Give up after S seconds (exit 7).",
)
def restart_daemon(invocation: Invocation, everything: bool, timeout: float) -> int:
    """Replace the control plane and keep every child; returns when the new one answers.

    When pxd does not run, it is started.
    """
    invocation.action = "restart pxd"
    client = invocation.client()
    try:
        before = client.get("/api/daemon").document
    except Unreachable:
        invocation.notice("pxd does not run; starting it")
        daemon_process.start_daemon(invocation, timeout)
        return _tell_restart(invocation, client.get("/api/daemon").document)
    # The old control plane may go before its answer is out; what counts is the new one.
    with contextlib.suppress(Interrupted):
        client.ask("POST", query("/api/daemon/restart", [("all", everything)]), timeout=timeout)
    try:
        return _tell_restart(invocation, _await_new(invocation, before, timeout))
    except KeyboardInterrupt:
        invocation.warn("\npxctl: detached; pxd goes on restarting")
        raise Silent(FAILED) from None


def _mark(document: dict[str, Any]) -> tuple[Any, Any]:
    control = document.get("control") or {}
    return control.get("pid"), control.get("started_at")


def _await_new(invocation: Invocation, before: dict[str, Any], timeout: float) -> dict[str, Any]:
    client = invocation.client()
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            document: dict[str, Any] = client.get("/api/daemon", timeout=5.0).document
        except Failure:
            document = before
        if _mark(document) != _mark(before) and answers(client, timeout=5.0):
            return document
        time.sleep(_PAUSE_SECONDS)
    raise Failure(
        f"no new control plane answers after {timeout:g} s",
        kind="timed_out",
        hint="pxctl doctor",
        exit_code=TIMED_OUT,
    )


def _tell_restart(invocation: Invocation, document: dict[str, Any]) -> int:
    keeper, control = document.get("keeper") or {}, document.get("control") or {}
    if invocation.json:
        invocation.document(document)
    elif not invocation.quiet:
        invocation.say(f"pxd answers again (keeper {keeper.get('pid')}, control {control.get('pid')})")
    return OK


@declare(
    "reload",
    effect="modifying: takes over changed settings; broken ones are refused and the old ones kept",
    examples=["pxctl daemon reload", "pxctl config check && pxctl daemon reload"],
)
def reload_daemon(invocation: Invocation) -> None:
    """Read settings and tools again; says what changed and what needs a restart."""
    invocation.action = "reload the settings"
    answer = invocation.client().ask("POST", "/api/daemon/reload")
    if invocation.json:
        invocation.document(answer)
        return
    for warning in answer.document.get("warnings") or []:
        invocation.warn(f"warning: {warning}")
    if invocation.quiet:
        return
    changed = answer.document.get("changed") or []
    for line in changed:
        invocation.say(f"changed: {line}")
    for line in answer.document.get("needs_restart") or []:
        invocation.say(f"needs `pxctl daemon restart`: {line}")
    if not changed:
        invocation.say("reloaded; nothing changed")


@declare("status", effect=READS, examples=["pxctl daemon status", "pxctl daemon status --json"])
def show_daemon(invocation: Invocation) -> None:
    """Show the daemon's own state; exits 3 when it does not run."""
    invocation.action = "read the daemon's state"
    try:
        answer = invocation.client().get("/api/daemon")
    except Unreachable as failure:
        raise _not_running(failure) from failure
    if invocation.told(answer, [(answer.document.get("keeper") or {}).get("pid")]):
        return
    for name, value in _facts(answer.document, invocation.now()):
        invocation.say(f"{name:<12} {value}")


def _not_running(failure: Unreachable) -> Failure:
    return Failure(
        f"pxd does not run: {failure.detail}",
        kind="not_running",
        hint="pxctl daemon start",
        exit_code=INACTIVE,
        **failure.extra,
    )


def _facts(document: dict[str, Any], now: float) -> list[tuple[str, str]]:
    control = document.get("control") or {}
    facts = [
        ("version", str(document.get("version"))),
        ("socket", str(document.get("socket"))),
        ("keeper", _process(document.get("keeper") or {}, now)),
        ("control", _process(control, now) + f", restarted {control.get('restarts') or 0}x"),
        ("kill", str(document.get("kill_rung"))),
        ("memory", str(document.get("memory_rung"))),
    ]
    if document.get("stopping"):
        facts.append(("state", "stopping"))
    facts += [("interrupted", f"{one.get('unit')} (pid {one.get('pid')})") for one in document.get("interrupted") or []]
    facts += [("degraded", f"{one.get('part')}: {one.get('detail')}") for one in document.get("degraded") or []]
    return facts


def _process(part: dict[str, Any], now: float) -> str:
    memory, started = output.size(part.get("rss_bytes")), output.ago(part.get("started_at"), now)
    return f"pid {part.get('pid')}, {memory}, started {started}"


_PLATFORMS = click.Choice(["auto", service.SYSTEMD, service.LAUNCHD])


@declare(
    "install",
    effect="modifying: writes one unit file, enables and starts it; --print changes nothing",
    examples=[
        "pxctl daemon install",
        "pxctl daemon install --print",
        "sudo pxctl daemon install --system",
        "pxctl daemon install --print --platform launchd",
    ],
)
@click.option("--print", "only_print", is_flag=True, help="Print the unit and change nothing.")
@click.option("--platform", type=_PLATFORMS, default="auto", show_default=True, help="Service manager.")
@click.option("--force", is_flag=True, help="Overwrite a unit that differs.")
def install_service(invocation: Invocation, only_print: bool, platform: str, force: bool) -> None:
    """Write and enable the systemd or launchd unit of pxd: the user's, or with --system the machine's."""
    invocation.action = "install pxd"
    platform = service.choose_platform(platform)
    text = service.unit_text(invocation, platform)
    path = service.unit_path(invocation, platform, text)
    if only_print:
        _print(invocation, platform, path, text)
        return
    written = service.write_unit(path, text, force=force)
    invocation.notice(f"{'wrote' if written else 'found'} {path}")
    by_hand = answers(invocation.client())
    try:
        service.turn_on(invocation, platform, path, now=not by_hand)
    except Failure as failure:
        failure.detail = f"{path} is written, but not enabled: {failure.detail}"
        raise
    if by_hand:
        invocation.notice(
            "pxd runs already; for the service manager to take over: pxctl daemon stop, then start the unit"
        )
    if invocation.json:
        invocation.document({"schema": "px.daemon_install/1", "platform": platform, "path": path, "written": written})
    elif invocation.quiet:
        invocation.say(path)
    else:
        invocation.say(f"pxd is installed: {path}")


def _print(invocation: Invocation, platform: str, path: str, text: str) -> None:
    if invocation.json:
        invocation.document({"schema": "px.daemon_unit/1", "platform": platform, "path": path, "text": text})
    else:
        invocation.write(text)


_uninstall_PLATFORMS = click.Choice(["auto", service.SYSTEMD, service.LAUNCHD])


@declare(
    "uninstall",
    effect="modifying: stops and disables the unit, removes its file; tools, settings and ledger stay",
    examples=["pxctl daemon uninstall", "pxctl daemon uninstall --print", "sudo pxctl daemon uninstall --system"],
)
@click.option("--print", "only_print", is_flag=True, help="Print what would be removed and change nothing.")
@click.option("--platform", type=_uninstall_PLATFORMS, default="auto", show_default=True, help="Service manager.")
def uninstall_service(invocation: Invocation, only_print: bool, platform: str) -> None:
    """Disable and remove the unit that `pxctl daemon install` wrote. When there is none, that is fine."""
    invocation.action = "uninstall pxd"
    platform = service.choose_platform(platform)
    text = service.unit_text(invocation, platform) if platform == service.LAUNCHD else ""
    path = service.unit_path(invocation, platform, text)
    if only_print:
        invocation.say(path)
        return
    there = os.path.exists(path)
    if there:
        _remove(invocation, platform, path)
    else:
        invocation.notice(f"there is no {path}; nothing to do")
    if invocation.json:
        invocation.document({"schema": "px.daemon_uninstall/1", "platform": platform, "path": path, "removed": there})
    elif there:
        invocation.say(path if invocation.quiet else f"pxd is uninstalled: {path} removed")


def _remove(invocation: Invocation, platform: str, path: str) -> None:
    """Remove the file even where no service manager runs: it must not come back at the next boot."""
    trouble: Failure | None = None
    try:
        service.turn_off(invocation, platform, path)
    except Failure as failure:
        if failure.kind != "no_service_manager":
            raise
        trouble = failure
    os.unlink(path)
    if trouble is not None:
        invocation.warn(f"pxctl: {trouble.detail}")
        return
    service.after_removal(invocation, platform)


@declare("doctor", effect=READS, examples=["pxctl doctor", "pxctl doctor --json"])
def check_all(invocation: Invocation) -> int:
    """Check everything, and name the one command that repairs each fault. Works without a daemon, too.

    Exits 1 when a check fails; warnings do not count.
    """
    invocation.action = "check the daemon"
    checks = [*_local_checks(invocation), *_daemon_checks(invocation)]
    told = {"schema": "px.doctor/1", "checks": checks}
    if not invocation.told(told, (check["name"] for check in checks if check["status"] != "ok")):
        for check in checks:
            word = invocation.paint(f"{check['status']:<4}", BY_STATE.get(check["status"]))
            invocation.say(f"{word}  {clean(check['name'] + ': ' + check['detail'])}")
            if check["repair"]:
                invocation.say(f"      repair: {clean(check['repair'])}")
    return FAILED if any(check["status"] == "fail" for check in checks) else OK


def _check(name: str, status: str, detail: str, repair: str | None = None) -> dict[str, Any]:
    return {"name": name, "status": status, "detail": detail, "repair": repair}


def _local_checks(invocation: Invocation) -> Iterator[dict[str, Any]]:
    """Yield what can be judged from here alone; directories and the socket's mode are the daemon's to check."""
    try:
        path = invocation.places.socket
    except Failure as failure:
        yield _check("places", "fail", failure.detail, failure.hint)
        return
    try:
        program = daemon_process.find_pxd(daemon_process.daemon_environment(invocation))
        yield _check("pxd", "ok", f"the daemon's program is {program}")
    except Failure as failure:
        yield _check("pxd", "fail", failure.detail, failure.hint)
    size, most = len(os.fsencode(path)), _SUN_PATH - 1
    if size <= most:
        yield _check("socket path", "ok", f"{path} has {size} of at most {most} bytes")
    else:
        detail = f"{path} has {size} bytes; this platform takes at most {most}"
        yield _check("socket path", "fail", detail, "export PX_SOCKET=~/pxd.sock")


def _daemon_checks(invocation: Invocation) -> Iterator[dict[str, Any]]:
    try:
        checks = invocation.client().get("/api/doctor").document.get("checks") or []
    except Failure as failure:
        yield _check("daemon", "fail", failure.detail, failure.hint)
        return
    yield _check("daemon", "ok", f"answers at {invocation.socket_path}")
    for one in checks:
        repair = str(one["repair"]) if one.get("repair") else None
        yield _check(str(one.get("name")), str(one.get("status")), str(one.get("detail")), repair)


@declare(
    "show",
    effect=READS,
    examples=["pxctl config show", "pxctl config show --json", "PX_TOOLS__WARM_KEEP_MAX=9 pxctl config show"],
)
def show_settings(invocation: Invocation) -> None:
    """Show every setting that holds, its value and where it comes from; with -q the keys only.

    Works without a daemon.
    """
    invocation.action = "show the settings"
    if not invocation.quiet or invocation.json:
        invocation.write(ask_pxd(invocation, "--show-config", *(["--json"] if invocation.json else [])))
        return
    for setting in json.loads(ask_pxd(invocation, "--show-config", "--json"))["settings"]:
        invocation.say(setting["key"])


@declare("check", effect=READS, examples=["pxctl config check", "pxctl config check --json"])
def check_settings(invocation: Invocation) -> None:
    """Check the settings files: file, line, key and nearest match of each fault; exits 1 when there is one.

    Works without a daemon.
    """
    invocation.action = "check the settings"
    invocation.write(ask_pxd(invocation, "--check-config", *(["--json"] if invocation.json else [])))


@declare(
    "completion",
    effect=READS,
    examples=[
        "pxctl completion bash > ~/.local/share/bash-completion/completions/pxctl",
        "pxctl completion zsh > ~/.zfunc/_pxctl    # a directory of $fpath",
        "pxctl completion fish > ~/.config/fish/completions/pxctl.fish",
        'eval "$(pxctl completion bash)"    # this shell only',
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
def print_script(invocation: Invocation, shell: str) -> None:
    """Print a completion script. Names of tools and units are asked of the running daemon, in at most 0.1 s."""
    invocation.write(script(shell, click.get_current_context().find_root().command))


@declare("version", effect=READS, examples=["pxctl version", "pxctl version --json"])
def show_version(invocation: Invocation) -> None:
    """Show the version of the client, and that of the daemon when it answers."""
    client = own_version()
    daemon = _daemon_version(invocation)
    if invocation.json:
        invocation.document({"schema": "px.version/1", "client": client, "daemon": daemon})
        return
    invocation.say(client if invocation.quiet else f"pxctl {client}")
    if not invocation.quiet:
        invocation.say(f"pxd {daemon}" if daemon else "pxd not running")
    if daemon and client not in {daemon, UNKNOWN_VERSION}:
        invocation.notice("pxctl: client and daemon differ; bring the daemon up to date: pxctl daemon restart --all")


def _daemon_version(invocation: Invocation) -> str | None:
    try:
        document = invocation.client().get("/api/daemon", timeout=5.0).document
    except Failure:
        return None
    version = document.get("version")
    return str(version) if version else None
