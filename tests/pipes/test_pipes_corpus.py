"""A small zoo of `pipe.md` files, written as different people and programs write them, and what each must become.

Every one is also edited: `enabled` is switched, and nothing but that line may change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pipe_texts import read
from supervisord_py.ledger.pipes import Plan
from supervisord_py.pipes.front_matter import parse, set_keys
from supervisord_py.pipes.models import EventPattern, PipeDefinition
from supervisord_py.pipes.schedule import At, Every, Manual


@dataclass(frozen=True)
class Animal:
    """One file. `fields` must be equal; `warns` are words of each warning."""

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    warns: tuple[str, ...] = ()


ZOO = {
    "smallest": Animal("---\n---\nSay hello.\n", {"schedule": Manual(), "body": "Say hello."}),
    "by-hand": Animal("---\nschedule: manual\nenabled: true\n---\n\n# Tidy\n\nTidy up.\n",
        {"schedule": Manual(), "enabled": True, "body": "# Tidy\n\nTidy up."}),
    "often": Animal("---\nname: often\nschedule: every 10m\nenabled: true\n---\n<!-- a note -->\nLook.\n",
        {"schedule": Every(600), "title": None, "body": "<!-- a note -->\nLook."}),
    "another-title": Animal("---\nname: Voice to Task\nschedule: every 12h\n---\nx\n",
        {"title": "Voice to Task", "schedule": Every(43200)}),
    "once": Animal("---\nschedule: at 2099-01-01T00:00:00Z\n---\nx\n", {"schedule": At("2099-01-01T00:00:00+00:00")}),
    "typed-words": Animal("---\nenabled: yes\nhistory: off\ntimeout: 10m\nmodel: 010\nicon: 2026-01-01\n---\nx\n",
        {"enabled": True, "timeout_seconds": 600, "model": "010"}),
    "windows": Animal("\ufeff---\r\nname: Fenêtre\r\nschedule: every 1h\r\n---\r\n\r\nBonjour\r\n\r\n---\r\nSuite\r\n",
        {"title": "Fenêtre", "schedule": Every(3600), "body": "Bonjour\r\n\r\n---\r\nSuite"}),
    "spaced": Animal("\n\n---   \n\n# made by a program\n\nschedule : every 4h\n\n---\t\n\n\n  Indented first.\n",
        {"schedule": Every(14400), "body": "  Indented first."}),
    "presets-flush": Animal('---\npreset:\n- fast\n- good\n- "*"\nschedule: every 6h\n---\nx\n',
        {"presets": ("fast", "good", "*"), "schedule": Every(21600)}),
    "older-words": Animal(
        "---\nname: older\nagent: pi\npreset: pi-agent\nmodel: auto\nlookback: 1h\nconfig:\n  vault_path: ~/notes\n"
        "allow-apps: [Mail]\n---\nFrom {{start_time}} to {{end_time}} in {{vault_path}} cost $5\n",
        {"presets": ("auto",), "model": None, "agent": "pi",
         "body": "From {{start_time}} to {{end_time}} in {{vault_path}} cost $5"},
        warns=("lookback", "config", "allow-apps")),
    "rights": Animal(
        "---\nschedule: every 30m\npermissions:\n  allow:\n    - Api(GET /search)\n  deny: [App(a, b), Window(*x*)]\n"
        "connections: []\n---\nx\n",
        warns=("permissions",)),
    "rights-null": Animal("---\npermissions:\nconnections:\n  - slack\n  - mcp:notes\n---\nx\n",
        warns=("connections",)),
    "chained": Animal(
        "---\nschedule: manual\ntrigger:\n  events:\n    - pipe_completed:often\n    - meeting_ended\n"
        "    - workflow_ready:x\n---\nx\n",
        {"events": (EventPattern("pipe_completed", "often"), EventPattern("meeting_ended"),
                    EventPattern("workflow_ready", "x"))}),
    "from-a-store": Animal(
        "---\nsource_slug: someone/thing\ninstalled_version: 3\nsource_hash: 12345678901234567890\nfeatured: true\n"
        "icon: 🗒️\ncategory: work\nartifacts:\n- path: ./output/a.md\n  title: Résumé — 日本\n  kind: md\n---\nx\n"),
    "hostile-body": Animal(
        "---\nschedule: every 60m\nenabled: true\n---\n# Set up\n\n```yaml\n---\nenabled: false\nschedule: never\n---\n"
        "```\n\nenabled: false\n\n---\n\n$HOME `x` {{a}} %Y &amp; *b* @c\n",
        {"enabled": True, "schedule": Every(3600)}),
    "colons": Animal('---\ndescription: "Notes: what was said"\n---\nx\n', {"description": "Notes: what was said"}),
    "a-script": Animal("---\nagent: command\ncommand: sh -c 'cat > \"$PX_OUTPUT_DIR/in\"'\n---\n",
        {"plan": Plan("command", ("sh", "-c", 'cat > "$PX_OUTPUT_DIR/in"')), "body": ""}),
    "long": Animal("---\nschedule: every 24h\n---\n" + "A paragraph of a prompt.\n" * 540, {"schedule": Every(86400)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_each_file_becomes_what_it_says_and_is_switched_by_one_line(name: str) -> None:
    animal = ZOO[name]
    before, found = animal.text, read(animal.text, name)
    assert isinstance(found, PipeDefinition), found
    assert {key: getattr(found, key) for key in animal.fields} == animal.fields
    assert len(found.warnings) == len(animal.warns), found.warnings
    assert [words for words, said in zip(animal.warns, found.warnings, strict=True) if words not in said] == []
    for enabled in (True, False):
        after = set_keys(before, {"enabled": enabled})
        other = read(after, name)
        assert isinstance(other, PipeDefinition)
        assert (other.enabled, other.warnings, other.body) == (enabled, found.warnings, found.body)
        assert after[parse(after, "").body_start :] == before[parse(before, "").body_start :]
        differing = set(before.splitlines(keepends=True)) ^ set(after.splitlines(keepends=True))
        assert all(each.startswith("enabled:") for each in differing)
