"""Why a kernel gets the interpreter that it gets, in lines. Pure: the document in, lines out."""

from __future__ import annotations

from pxctl.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from pxctl.style import Paint


def explanation_lines(document: dict[str, Any], paint: Paint) -> Iterator[str]:
    """Yield the lines of a px.kernel-explanation/1 document."""
    yield f"in {clean(str(document.get('cwd')))}"
    if document.get("kernelspec"):
        yield f"by the kernelspec {clean(str(document['kernelspec']))}"
    for candidate in document.get("candidates") or []:
        yield from _candidate(candidate, paint)
    if document.get("failure"):
        yield paint("none can be taken:", "red") + f" {clean(str(document['failure']))}"
    if document.get("overlay"):
        yield f"with ipykernel from {clean(str(document['overlay']))}"
    yield from _environment(document.get("environment") or {})
    if modules := document.get("modules"):
        yield f"modules: {', '.join(_name(module) for module in modules)}"


def _candidate(candidate: dict[str, Any], paint: Paint) -> Iterator[str]:
    taken = candidate.get("taken")
    mark = paint("✓ taken", "green") if taken else paint("  not taken", "dim")
    version = f" ({candidate['version']})" if candidate.get("version") else ""
    path = clean(str(candidate.get("path")))
    detail = clean(str(candidate.get("detail") or candidate.get("reason")))
    yield f"{mark}  {candidate.get('source')}: {path}{version} {detail}"
    if candidate.get("remedy"):
        yield f"      remedy: {clean(str(candidate['remedy']))}"


def _environment(environment: dict[str, Any]) -> Iterator[str]:
    if passed := environment.get("passed"):
        yield f"environment passed: {', '.join(clean(str(name)) for name in passed)}"
    by_reason: dict[str, list[str]] = {}
    for dropped in environment.get("dropped") or []:
        by_reason.setdefault(str(dropped.get("why")), []).append(clean(str(dropped.get("name"))))
    for why, names in by_reason.items():
        yield f"environment dropped, {clean(why)}: {', '.join(names)}"


def _name(module: Any) -> str:
    return clean(str(module.get("path") or module.get("name")) if isinstance(module, dict) else str(module))
