"""What a daemon does in a machine that sleeps and whose clock is set: a script for that machine
(machine.py).
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from e2e.house import server, until
from e2e.pipe_house import pipes_house

DAY = 86400
ASLEEP, TIMEOUT = 25, 20  # seconds
PATIENCE = 170.0


def main() -> None:
    with pipes_house(start=False) as home:
        home.tool("idle", server("return 1"), warm_keep_seconds=TIMEOUT)
        gate = (
            home.shell("long", "until [ -e gate ]; do sleep 0.1; done", f"timeout: {TIMEOUT}")
            / "gate"
        )
        home.shell("nine", "true", "schedule: '0 9 * * *'")
        home.start(wait=False)
        until(home.answers, "pxd answers", PATIENCE)
        assert home.run("idle").status == 200
        number = home.begin("long").id
        until(lambda: home.row(number).pid, "the agent runs", PATIENCE)
        assert home.status("idle")["state"] == "ready"

        asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        Path("/sys/class/rtc/rtc0/wakealarm").write_text(f"+{ASLEEP}")
        Path("/sys/power/state").write_text("mem")
        woke = time.monotonic()
        asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - woke - asleep
        assert asleep > TIMEOUT + 1, f"the machine slept {asleep} s"
        until(
            lambda: home.status("idle")["state"] != "ready", "what is too old is stopped", PATIENCE
        )
        gone = time.monotonic() - woke
        gate.touch()
        done = until(lambda: it if (it := home.row(number)).is_final else None, "its end", PATIENCE)

        nine = (time.time() // DAY + 1) * DAY + 9 * 3600
        time.clock_settime(time.CLOCK_REALTIME, nine)
        due = until(lambda: home.rows("pipe=nine"), "the run of nine o'clock", PATIENCE)[0]
        late = datetime.fromisoformat(due.queued_at).timestamp() - nine
        print(
            f"slept {asleep:.1f} s; idle tool gone after {gone:.1f} s; run {done.status}; calendar "
            f"after {late:.2f} s"
        )
        assert gone < 5, "the tool was too old when the machine woke up"
        assert done.status == "completed", f"a false timeout: {done}"
        assert 0 <= late < 1, "the clock was set to when it is due"


if __name__ == "__main__":
    main()
