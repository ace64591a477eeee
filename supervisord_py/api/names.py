"""Names that people type become units: `x` where unambiguous, `tool:x`, globs. Pure: the known units are given.

A unit may have a second name that is not its own alone: a kernel is `kernel:default-3fa9c1`, and `default` as long as
no other kernel is called so.

An exact name always wins over its reading as a glob, so that a folder with a bracket in its name can be addressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType

from supervisord_py.errors import AmbiguousNameError, BadRequestError, UnknownUnitError

_GLOB_SIGNS = frozenset("*?[")
_CANDIDATES_SHOWN = 20


def is_glob(pattern: str) -> bool:
    """Say whether a name is to be read as a glob, unless a unit is called exactly that."""
    return not _GLOB_SIGNS.isdisjoint(pattern)


def nearest_hint(wanted: str, known: Iterable[str]) -> str:
    """Suggest the known name that looks most like `wanted`, or where to find the known ones.

    Kinds do not count as likeness, or `tool:` alone would make any two tools look alike; among equals the kind decides.
    """
    kind, colon, rest = wanted.partition(":")
    ordered = sorted(known, key=lambda each: bool(colon) and each.startswith(f"{kind}:"))
    bare = {each.rpartition(":")[2]: each for each in ordered}
    close = get_close_matches(rest if colon else wanted, list(bare), n=1, cutoff=0.5)
    return f"did you mean {bare[close[0]]!r}?" if close else "see: pxctl status"


def resolve(
    patterns: Sequence[str], units: Collection[str], second_names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the units that the patterns mean, each once, in the order asked for; a glob's are sorted.

    `second_names`: by unit, where it has one; without a kind. Raises UnknownUnitError: a pattern fits nothing, the hint
    names the nearest; AmbiguousNameError: a name fits several units, `candidates` lists them; BadRequestError: it is
    empty.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if not pattern:
            raise BadRequestError("A unit's name is empty.", hint="name a unit, for example tool:x; see: pxctl status")
        if pattern in units:
            found[pattern] = None
            continue
        named = []
        for unit in sorted(units):
            kind, _, name = unit.partition(":")
            second = second_names.get(unit)
            if pattern == name or (second is not None and pattern in {second, f"{kind}:{second}"}):
                named.append(unit)
        if len(named) > 1:
            raise _ambiguous(pattern, named)
        if not named and is_glob(pattern):
            seen = {unit: unit if ":" in pattern else unit.partition(":")[2] for unit in sorted(units)}
            named = [unit for unit, shown in seen.items() if fnmatchcase(shown, pattern)]
        if not named:
            what = "No unit matches" if is_glob(pattern) else "There is no unit"
            choices = units if ":" in pattern else {unit.partition(":")[2] for unit in units}
            raise UnknownUnitError(f"{what} {pattern!r}.", hint=nearest_hint(pattern, sorted(choices)))
        found.update(dict.fromkeys(named))
    return tuple(found)


def resolve_one(pattern: str, units: Collection[str], second_names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the single unit that a pattern means; raises as `resolve`, AmbiguousNameError also of a glob."""
    found = resolve([pattern], units, second_names)
    if len(found) > 1:
        raise _ambiguous(pattern, found)
    return found[0]


def _ambiguous(pattern: str, candidates: Sequence[str]) -> AmbiguousNameError:
    shown = list(candidates[:_CANDIDATES_SHOWN])
    return AmbiguousNameError(
        f"{pattern!r} fits {len(candidates)} units: {', '.join(shown)}.",
        hint=f"say which, for example {shown[0]}",
        candidates=shown,
    )
