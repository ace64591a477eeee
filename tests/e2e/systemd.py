"""A real systemd to test against, booted in namespaces of its own by systemd.sh; needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
INSIDE = "/run/px"
MARKED = "grep -lsE 'PX_INSTANCE=|PX_CONTROL=' /proc/[0-9]*/environ || true"


class Machine:
    """A booted systemd in namespaces of its own; `share` is /run/px inside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.share = folder, folder / "share"

    def recipe(self, verb: str, *args: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", Path(__file__).with_name("systemd.sh"), verb, self.folder, *args]
        quiet = subprocess.DEVNULL
        return subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=False, stdin=quiet
        )

    def do(self, *argv: str) -> str:
        done = self.recipe("exec", *argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def show(self, name: str) -> str:
        return self.recipe("exec", "systemctl", "show", "-P", name, "pxd.service").stdout.strip()

    def leftovers(self) -> str:
        """Return the environments of processes that some daemon has started."""
        return self.do("sh", "-c", MARKED).strip()

    def is_new(self, main: str) -> bool:
        """Say whether it is up as another process; both facts are of the same moment."""
        told = self.recipe(
            "exec", "systemctl", "show", "-p", "ActiveState", "-p", "MainPID", "pxd.service"
        ).stdout
        facts = dict(line.split("=", 1) for line in told.split())
        return facts.get("ActiveState") == "active" and facts.get("MainPID") not in {
            None,
            main,
            "0",
        }

    def pxctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.recipe("exec", f"{INSIDE}/bin/pxctl", "--system", *argv)


def furnish(machine: Machine) -> None:
    """Put the code, its environment and two commands where the inside sees them (its /tmp is
    another one).
    """
    venv, bin_ = machine.share / "venv", machine.share / "bin"
    # The peers are for other tests, and twice as many files as all the rest.
    wanted = [path for path in Path(sys.prefix).iterdir() if path.name != "peers"]
    for how in ("-al", "-a"):  # hard links where the file system is the same
        venv.mkdir()
        if (
            subprocess.run(
                ["cp", how, "-t", venv, *wanted], check=how == "-a", capture_output=True
            ).returncode
            == 0
        ):
            break
        shutil.rmtree(venv)
    packages = next((venv / "lib").glob("python3*")) / "site-packages"
    for link in (*packages.glob("*.pth"), *packages.glob("__editable__*")):
        link.unlink()  # an editable installation points to where only the outside can look
    shutil.copytree(REPOSITORY / "supervisord_py", packages / "supervisord_py")
    shutil.copytree(REPOSITORY / "cli" / "pxctl", packages / "pxctl")
    bin_.mkdir()
    for name, module in (("pxd", "supervisord_py.daemon.main"), ("pxctl", "pxctl.main")):
        for script in (bin_ / name, venv / "bin" / name):
            # in the environment it is a link to the real one, with a path of outside
            script.unlink(missing_ok=True)
            script.write_text(
                f"#!{INSIDE}/venv/bin/python\nimport sys\nfrom {module} import "
                "main\nsys.exit(main())\n"
            )
            script.chmod(0o755)


@contextlib.contextmanager
def booted(
    require: Callable[[object, str], None], bring: Callable[[Machine], None] = furnish
) -> Iterator[Machine]:
    """Boot a machine and bring the code into it; skip where that cannot be, and in CI fail."""
    require(os.geteuid() == 0, "a systemd in namespaces needs root")
    require(Path("/lib/systemd/systemd").exists(), "needs systemd")
    machine = Machine(Path(tempfile.mkdtemp(prefix="pxsd-", dir="/tmp")))
    up = machine.recipe("up")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        bring(machine)
        yield machine
    finally:
        machine.recipe("down")
        shutil.rmtree(machine.folder, ignore_errors=True)
