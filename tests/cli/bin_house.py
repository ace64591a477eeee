"""A `bin` folder as an installation has it, with a stand-in for `pxd` beside `pxctl`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cli.px import REPOSITORY, Ended, Px

TESTS = Path(__file__).parent


class House:
    """A `bin` folder with `pxctl` and, beside it, a program in the place of `pxd`."""

    def __init__(self, px: Px) -> None:
        self.px = px
        self.bin = px.folder / "bin"
        self.bin.mkdir()
        paths = f"{TESTS.parent}:{REPOSITORY / 'cli'}"
        self._script("pxctl", f"#!{sys.executable}\nimport sys\nfrom pxctl.main import main\nsys.exit(main())\n")
        self._script("pxd", f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} {TESTS / "pretend_pxd.py"} "$@"\n')

    def _script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def fake(self, name: str, text: str) -> None:
        self._script(name, f"#!/bin/sh\n{text}\n")

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(self.bin / "pxctl")]

    def __call__(self, *arguments: str, **env: str) -> Ended:
        return self.px(*arguments, argv=self.argv, **{"PATH": f"{self.bin}:/usr/bin:/bin", **env})

    @property
    def calls(self) -> list[dict[str, Any]]:
        path = self.px.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> Path:
        return self.px.folder / "px" / "state" / "logs" / "pxd.log"
