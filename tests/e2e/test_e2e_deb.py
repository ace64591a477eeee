"""The Debian package on a real systemd: installed, started, upgraded with what is warm, removed,
purged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.house import until
from e2e.systemd import INSIDE, REPOSITORY, Machine, booted

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

NEXT = "9.9.9"


@pytest.fixture(scope="module")
def machine(require: Callable[[object, str], None]) -> Iterator[Machine]:
    """A booted Debian with both packages in INSIDE, and nothing of ours installed."""
    require(shutil.which("dpkg-deb"), "needs a Debian")
    with booted(require, build) as made:
        made.do("rm", "-f", "/usr/sbin/policy-rc.d")  # of container images: nothing may be started
        yield made


def build(machine: Machine) -> None:
    """Make the package, and of it one of a later version."""
    share = machine.share
    # which costs a third of the time
    env = os.environ | {"VENV": sys.prefix, "DPKG_DEB_COMPRESSOR_TYPE": "none"}
    subprocess.run(
        [REPOSITORY / ".ci" / "deb", share], env=env, check=True, stdin=subprocess.DEVNULL
    )
    (first,) = share.glob("pxd_*.deb")
    root = share / "later"
    subprocess.run(["dpkg-deb", "-R", first, root], check=True)
    (module,) = root.glob("usr/lib/pxd/lib/python3*/site-packages/supervisord_py/__init__.py")
    for path, before, after in (
        (root / "DEBIAN" / "control", r"^Version: .*$", f"Version: {NEXT}"),
        (module, r"^__version__ = .*$", f'__version__ = "{NEXT}"'),
    ):
        path.write_text(re.sub(before, after, path.read_text(), flags=re.MULTILINE))
    compiled = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(["/usr/bin/python3", *compiled, module], check=True)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", root, share / "next.deb"], env=env, check=True
    )
    first.rename(share / "first.deb")
    shutil.rmtree(root)


def pxctl(machine: Machine, *argv: str) -> Any:
    return json.loads(machine.do("pxctl", "--system", *argv, "--json"))


def versions(machine: Machine) -> set[str]:
    """Return the versions of keeper and control plane; nothing while one of them is just being
    replaced.
    """
    told = machine.recipe("exec", "pxctl", "--system", "daemon", "status", "--json")
    return (
        {json.loads(told.stdout)[part]["version"] for part in ("keeper", "control")}
        if told.returncode == 0
        else set()
    )


def test_the_package_lives(machine: Machine) -> None:
    """One life in one order: each step stands on the one before."""
    machine.do("dpkg", "-i", f"{INSIDE}/first.deb")
    until(lambda: machine.show("ActiveState") == "active", "it is started")
    assert machine.do("systemctl", "is-enabled", "pxd.service") == "enabled\n"
    assert "/usr/share/man/man1/pxctl.1.gz" in machine.do("man", "-w", "pxctl")
    assert machine.do("pxctl", "help", "pxd.toml").startswith("PXD.TOML(5)")
    assert "_pxctl_complete" in machine.do(
        "bash", "-c", "cat /usr/share/bash-completion/completions/pxctl"
    )
    machine.do("systemd-analyze", "--man=no", "verify", "pxd.service")
    pxctl(machine, "tools", "add", "example:compound-interest")
    pxctl(machine, "run", "compound-interest", "principal=1000", "annual_rate=0.05", "years=2")
    before, tool = pxctl(machine, "daemon", "status"), pxctl(machine, "status")["units"][0]["pid"]

    machine.do("dpkg", "-i", f"{INSIDE}/next.deb")
    until(lambda: versions(machine) == {NEXT}, "both processes are the new version")
    after = pxctl(machine, "daemon", "status")
    assert after["keeper"]["pid"] == before["keeper"]["pid"] == int(machine.show("MainPID"))
    assert machine.show("NRestarts") == "0"
    assert pxctl(machine, "status")["units"][0]["pid"] == tool
    pxctl(machine, "run", "compound-interest", "principal=1", "annual_rate=0", "years=1")
    assert pxctl(machine, "status")["units"][0]["pid"] == tool

    machine.do("dpkg", "-r", "pxd")
    assert machine.show("ActiveState") == "inactive"
    assert machine.leftovers() == ""
    assert "compound-interest" in machine.do("ls", "/var/lib/pxd/tools")
    assert (
        machine.do("sh", "-c", "ls -d /usr/lib/pxd /usr/bin/px* /etc/pxd 2>/dev/null || true") == ""
    )

    machine.do("dpkg", "-i", f"{INSIDE}/first.deb")
    until(lambda: machine.show("ActiveState") == "active", "it is started again")
    pxctl(machine, "run", "compound-interest", "principal=1", "annual_rate=0", "years=1")
    machine.do("systemctl", "disable", "--now", "pxd.service")
    machine.do("dpkg", "-i", f"{INSIDE}/next.deb")
    assert machine.show("ActiveState") == "inactive", (
        "who turned it off, has it off after an upgrade"
    )
    assert machine.show("UnitFileState") == "disabled"

    machine.do("systemctl", "enable", "--now", "pxd.socket")
    assert pxctl(machine, "daemon", "status")["control"]["version"] == NEXT, (
        "it starts when it is asked"
    )
    machine.do("mkdir", "/etc/pxd")
    machine.do("dpkg", "-P", "pxd")
    assert machine.show("ActiveState") == "inactive"
    assert machine.do("find", "/etc", "/run", "/usr", "/var", "-name", "pxd*") == ""
