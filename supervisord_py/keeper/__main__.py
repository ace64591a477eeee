"""Start the keeper, or sweep up after one: `python -I -S keeper/__main__.py --boot-fd N [--sweep]`.

Isolated and without site-packages: nothing that a user installed can reach into the process that holds everything.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from supervisord_py.keeper.context import Boot
    from supervisord_py.keeper.journal import Journal

EXIT_USAGE = 2
EXIT_SURVIVORS = 8


def _find_package() -> None:
    """Let `supervisord_py` be imported, after everything else; never modules beside this file by their bare names."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path.append(os.path.dirname(os.path.dirname(here)))


def _arguments(argv: list[str]) -> tuple[int, str]:
    """Return (boot descriptor, mode). There are two flags and no user: this is no command."""
    words = list(argv)
    mode = "sweep" if "--sweep" in words else "hold"
    try:
        return int(words[words.index("--boot-fd") + 1]), mode
    except (ValueError, IndexError):
        sys.stderr.write("usage: keeper --boot-fd N [--sweep]\n")
        raise SystemExit(EXIT_USAGE) from None


def main(argv: list[str]) -> int:
    """Run; return the exit code."""
    _find_package()
    from supervisord_py.keeper.context import BootError, read_boot
    from supervisord_py.keeper.journal import Journal

    fd, mode = _arguments(argv)
    journal = Journal()
    try:
        boot = read_boot(fd)
    except BootError as error:
        journal.error("boot_failed", detail=str(error))
        return EXIT_USAGE
    return _sweep(boot, journal) if mode == "sweep" else _hold(boot, journal)


def _sweep(boot: Boot, journal: Journal) -> int:
    from supervisord_py.keeper.sweep import sweep

    swept = sweep(boot.daemon_id, boot.run_dir)
    survivors = [row.pid for row in swept.survivors]
    journal.info("swept", interrupted=list(swept.interrupted.values()), survivors=survivors)
    return EXIT_SURVIVORS if survivors else 0


def _hold(boot: Boot, journal: Journal) -> int:
    from supervisord_py.keeper.context import Birth
    from supervisord_py.keeper.keeper import Keeper

    keeper = Keeper(boot, Birth(), journal)
    code = keeper.run()
    if keeper.ending.anew:
        keeper.exec_anew()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
