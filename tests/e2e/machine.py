"""A virtual machine that really sleeps: Debian's kernel in QEMU, and this project's environment in
its memory.

No disk, no network, no KVM: whatever the host is, a suspend to RAM and a clock that may be set.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNEL = Path(sys.prefix) / "peers" / "machine" / "vmlinuz"
NEEDED = "qemu-system-x86, busybox-static and a kernel (make peers)"
LEFT_OUT = (
    "test",
    "idlelib",
    "site-packages",
    "dist-packages",
    "ensurepip",
    "config-*",
    "lib2to3",
    "tkinter",
)
INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t cgroup2 c /sys/fs/cgroup
ifconfig lo up
cd {root}
PYTHONPATH=tests {python} {script}
echo "exit code $?"
reboot -f
"""


def is_possible() -> bool:
    return all(map(shutil.which, ("qemu-system-x86_64", "busybox"))) and KERNEL.exists()


def play(folder: Path, script: Path, seconds: float) -> str:
    """Run a Python script of this project in the machine; return what its console showed.

    `folder` must be empty.
    """
    root = folder / "root"
    for name in ("bin", "proc", "sys", "dev", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    init = root / "init"
    init.write_text(INIT.format(root=ROOT, python=sys.executable, script=script))
    init.chmod(0o755)
    _furnish(root)
    files = subprocess.run(["find", "."], cwd=root, check=True, capture_output=True).stdout
    with (folder / "initrd").open("wb") as initrd:
        subprocess.run(
            ["busybox", "cpio", "-o", "-H", "newc"],
            cwd=root,
            check=True,
            input=files,
            stdout=initrd,
        )
    shutil.rmtree(root)
    argv = [
        "qemu-system-x86_64",
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-machine",
        "q35",
        "-smp",
        "2",
        "-m",
        "1G",
    ]
    argv += ["-kernel", str(KERNEL), "-initrd", str(folder / "initrd"), "-no-reboot"]
    argv += [
        "-append",
        "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off no_console_suspend",
    ]
    argv += [
        "-display",
        "none",
        "-vga",
        "none",
        "-net",
        "none",
        "-serial",
        "stdio",
        "-monitor",
        "none",
    ]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=seconds
    )
    return (
        f"{(done.stdout + done.stderr).decode(errors='replace')}\nqemu ended with {done.returncode}"
    )


def _furnish(root: Path) -> None:
    """Copy Python, what the lock names, the project, and the libraries of all that, each to the
    place it has here.
    """
    prefix, packages = Path(sys.prefix), Path(sysconfig.get_path("purelib"))
    locked = {
        "supervisord-py",
        *re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE),
    }
    needed = [
        it.files or ()
        for it in metadata.distributions()
        if re.sub(r"[-_.]+", "-", it.name).lower() in locked
    ]
    names = {file.parts[0] for files in needed for file in files} - {".."}
    _copy(root, [Path(sysconfig.get_path("stdlib"))], *(f"--exclude={name}" for name in LEFT_OUT))
    own = [
        prefix / "pyvenv.cfg",
        prefix / "bin" / "pxd",
        Path(sys.executable),
        Path(os.path.realpath(sys.executable)),
    ]
    own += [ROOT / name for name in ("supervisord_py", "cli", "tests")]
    _copy(root, own + [packages / name for name in names if (packages / name).exists()])
    binaries = [path for path in root.rglob("*") if path.is_file() and ".so" in path.suffixes]
    told = subprocess.run(
        ["ldd", sys.executable, *binaries], capture_output=True, text=True, check=False
    ).stdout
    libraries = {Path(found) for found in re.findall(r"(/\S+) \(0x", told)}
    _copy(root, [path for path in libraries if not path.is_relative_to(root)])


def _copy(root: Path, paths: list[Path], *options: str) -> None:
    packed = subprocess.Popen(
        ["tar", "-C", "/", "-ch", *options, *(f".{path}" for path in paths)], stdout=subprocess.PIPE
    )
    with packed:
        subprocess.run(["tar", "-C", root, "-x"], stdin=packed.stdout, check=True)
    assert packed.returncode == 0
