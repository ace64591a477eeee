"""Start the keeper, or sweep up after one: `python -I -S keeper/__main__.py --boot-fd N [--sweep]`.

Isolated and without site-packages: nothing that a user installed can reach into the process that
holds everything.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from supervisord_py.keeper.boot import Boot

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SURVIVORS = 8


def main(argv: list[str]) -> int:
    """Run; return the exit code. There are two flags and no user: this is no command."""
    # Let `supervisord_py` be imported, after everything else; never modules beside this file by
    # their bare names.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    sys.path.append(os.path.dirname(os.path.dirname(here)))
    if "--check" in argv:
        # Python takes bytecode for current by whole seconds and size: of a version that may be
        # refused, none is left.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    from supervisord_py.keeper.boot import Birth, read_boot
    from supervisord_py.keeper.journal import Journal

    journal = Journal()
    try:
        boot = read_boot(int(argv[argv.index("--boot-fd") + 1]))
    except (ValueError, IndexError, OSError) as error:
        journal.error(
            "boot_failed", detail=f"--boot-fd N, from which a boot document can be read: {error}"
        )
        return EXIT_USAGE
    if "--check" in argv:
        return _rehearse(boot)
    if "--sweep" in argv:
        from supervisord_py.keeper.sweep import sweep

        try:
            units, survivors = sweep(boot.daemon_id, boot.run_dir)
        except OSError as error:
            journal.error("sweep_failed", detail=str(error))
            return EXIT_SURVIVORS
        journal.info("swept", units=units, survivors=[row.pid for row in survivors])
        return EXIT_SURVIVORS if survivors else 0
    journal.keep_file(boot.log_dir)
    from supervisord_py.keeper import handover
    from supervisord_py.keeper.main import Keeper

    try:
        keeper = Keeper(boot, Birth(boot), journal)
    except OSError as error:  # nothing is held yet
        journal.error("keeper_not_started", detail=str(error))
        return EXIT_FAILED
    if boot.handover is None:
        keeper.hold_exit_records()
    else:
        document = boot.handover
        boot.handover = None
        try:
            keeper.take_over(document)
        except Exception as error:
            # What is held would end with this process: the version before goes on with it, where a
            # copy was kept.
            keeper.parts.failed(error)
            handover.exec_back(keeper.parts, document)
            raise
    try:
        code = keeper.run()
    except Exception as error:
        keeper.parts.failed(error)
        keeper.upgrade.go_back()
        raise
    if keeper.shutdown.is_restart:
        keeper.exec_anew()
    return code


def _rehearse(boot: Boot) -> int:
    """Tell a keeper that is about to become this version whether it could serve."""
    from supervisord_py.keeper.handover import EXIT_CANNOT_GO_ON, TRIAL_PASSED, CannotGoOnError
    from supervisord_py.keeper.trial import rehearse

    try:
        rehearse(boot)
    except CannotGoOnError as error:
        print(f"{error}", flush=True)
        return EXIT_CANNOT_GO_ON
    print(TRIAL_PASSED, flush=True)
    return 0


def _try(argv: list[str]) -> int:
    """Run a trial; what this version breaks with, and where, is the last line of the output."""
    try:
        return main(argv)
    except Exception as error:
        if str(error):
            print(f"{type(error).__name__}: {error}{_place_of(error)}", flush=True)
        return EXIT_USAGE


def _place_of(error: Exception) -> str:
    """Return the file and line that raised, in brackets; "" for a SyntaxError, whose text has
    them.
    """
    trace = error.__traceback__
    if trace is None or isinstance(error, SyntaxError):
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}, line {trace.tb_lineno})"


if __name__ == "__main__":
    sys.exit(_try(sys.argv[1:]) if "--check" in sys.argv else main(sys.argv[1:]))
