"""What trees use when pages that several processes share count once: the proportional set size.
Blocking, bounded.

The kernel walks page tables for it (about 10 ms for 500 MB), so only trees are read that share
pages with somebody, and only up to a bound for all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from supervisord_py.keeper import procfs
from supervisord_py.process.model import TreeStat

BOUND_BYTES = 16 << 30  # resident bytes of all trees that are read: about a third of a second


def shares_pages(stat: TreeStat, *, is_forked: bool) -> bool:
    """Say whether the sum of resident sizes may count pages twice, or count those of a zygote."""
    return stat.processes > 1 or is_forked


def shared_once(stats: Mapping[str, TreeStat], forked: Collection[str]) -> dict[str, int]:
    """Return the proportional set sizes of trees that share pages, in bytes, by key; `forked` come
    from a zygote.

    Left out are those that cannot be read (another system, another user's process, ended), or are
    beyond the bound.
    """
    found: dict[str, int] = {}
    left = BOUND_BYTES
    for key, stat in sorted(stats.items(), key=lambda item: item[1].rss_bytes):
        if not stat.pids or not shares_pages(stat, is_forked=key in forked):
            continue
        left -= stat.rss_bytes
        if left < 0:
            break
        sizes = [procfs.proportional(pid) for pid in stat.pids]
        known = [size for size in sizes if size is not None]
        if len(known) == len(sizes):
            found[key] = sum(known)
    return found
