"""What is shown of cells that a real kernel ran: writer, reader and display together."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from kernels.kernel_rig import kernel_house, no_news
from supervisord_py.kernels.config import OutputLimits
from supervisord_py.kernels.direct.backend import DirectBackend
from supervisord_py.kernels.output.cell_log import CellLog
from supervisord_py.kernels.output.follow import Bell, Piece, follow
from supervisord_py.kernels.output.notebook import notebook_outputs
from supervisord_py.kernels.output.records import End
from supervisord_py.kernels.output.render import show

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 90
RICH = """
import sys, subprocess
from IPython.display import display, clear_output, HTML, Markdown, JSON
print("gone"); clear_output(); print("10 %\\r100 %")
print("to stderr", file=sys.stderr, flush=True)
subprocess.run(["echo", "from a child"])
display(Markdown("*mark*")); display(HTML("<b>bold</b>", metadata={"m": 1})); display(JSON({"a": 1}))
bar = display("0", display_id=True); bar.update("done")
1 / 0
"""


async def test_everything_that_a_kernel_gives_is_shown_and_a_follower_hears_the_same(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig:
        launch = rig.launch()
        handle = await rig.start(DirectBackend(rig.placement, rig.config), launch)
        request, bell = rig.request(launch, RICH), Bell()
        log = CellLog(request.cells_dir, request.cell_id)

        async def followed() -> list[object]:
            return [item async for item in follow(log, bell)]

        async with asyncio.timeout(PATIENCE):
            following = asyncio.ensure_future(followed())
            reply = await handle.execute(request, bell.ring)
            bell.close()
            items = await following
        found = await asyncio.to_thread(show, log, OutputLimits())
        assert reply.error is not None
        assert found.error is not None
        assert (found.error.name, reply.error.name) == ("ZeroDivisionError", "ZeroDivisionError")
        for words in ("100 %\n", "to stderr\n", "from a child\n", "*mark*\n", "'done'\n", "division by zero"):
            assert words in found.text
        assert "gone" not in found.text
        assert "10 %\r" not in found.text
        assert "'0'" not in found.text
        assert [output["output_type"] for output in found.outputs if output["output_type"] != "stream"] == [
            *["display_data"] * 4, "error",
        ]  # fmt: skip
        assert len(notebook_outputs(log, OutputLimits())) == len(found.outputs)
        assert b"".join(item.data for item in items if isinstance(item, Piece)) == rig.out(request)
        assert isinstance(items[-1], End)

        big = rig.request(launch, "for n in range(5000): print(f'{n:06d}' + 'x' * 10000)")
        async with asyncio.timeout(PATIENCE):
            await handle.execute(big, no_news)
        expected = hashlib.sha256()
        for number in range(5000):
            expected.update(b"%06d" % number + b"x" * 10000 + b"\n")
        assert hashlib.sha256(rig.out(big)).digest() == expected.digest()
        cut = await asyncio.to_thread(show, CellLog(big.cells_dir, big.cell_id), OutputLimits())
        assert (cut.truncated, cut.total_lines, cut.total_bytes) == (True, 5000, 5000 * 10007)
        await handle.shutdown(5.0, "stopped")
