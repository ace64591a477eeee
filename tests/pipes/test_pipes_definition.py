"""Fields of the front matter: each read by its type, each mistake told with its line and what to
write instead.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipe_texts import EXAMPLES, broken, pipe_text, read, usable
from supervisord_py.config.documents import DocumentError, Problem
from supervisord_py.errors import ConfigError
from supervisord_py.ledger.pipes import Plan
from supervisord_py.pipes import models
from supervisord_py.pipes.adapters import sentence
from supervisord_py.pipes.catalog import read_pipe
from supervisord_py.pipes.definition import USED, name_trouble
from supervisord_py.pipes.front_matter import Value, parse, set_keys
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, RetryRules
from supervisord_py.pipes.schedule import Calendar, Cron, Every, Manual


def test_every_field() -> None:
    found = usable(
        """
name: Voice to Task
description: "Notes: what was said — 日本 😀"
schedule: daily at 9:30am
timezone: Europe/Berlin
enabled: no
run_on_enable: off
agent: claude
model: opus
provider: anthropic
preset: [fast, good, "*"]
effort: HIGH
timeout: 1h30m
history: yes
allow_empty: On
trigger: {events: [pipe_completed:other, 'tool_failed:*', my_event, pipe_completed:other]}
retries: {max: 5, on_timeout: yes, delay: 90s}
budget: {daily_tokens: 1.5M, daily_cost: $2.50}
limits: {turns: 40, tokens: 200k, cost: 0.5, memory: 512MB, processes: 99, cpu_percent: 50}
redact: ['sk-[a-z]+', "\\\\d{16}"]
"""
    )
    want = {
        "title": "Voice to Task",
        "description": "Notes: what was said — 日本 😀",
        "timezone": "Europe/Berlin",
        "schedule": Cron("30 9 * * *", "Europe/Berlin"),
        "enabled": False,
        "run_on_enable": False,
        "model": "opus",
        "provider": "anthropic",
        "effort": "high",
        "presets": ("fast", "good", "*"),
        "timeout_seconds": 5400,
        "redact": ("sk-[a-z]+", r"\d{16}"),
        "warnings": (),
        "retries": RetryRules(5, on_timeout=True, delay_seconds=90),
        "daily_tokens": 1_500_000,
        "daily_cost": 2.5,
        "plan": Plan(
            "claude",
            max_turns=40,
            max_tokens=200_000,
            max_cost=0.5,
            memory_bytes=512 * 1024**2,
            processes=99,
            cpu_percent=50,
            history=True,
            allow_empty=True,
        ),
    }
    assert {name: getattr(found, name) for name in want} == want
    assert found.events == ("pipe_completed:other", "tool_failed:*", "my_event")


@pytest.mark.parametrize(
    ("header", "field", "value"),
    [
        ("name: Other", "title", "Other"),
        ("description: |\n  one\n  two", "description", "one\ntwo"),
        ("preset: [pi-agent, fast, fast]", "presets", ("auto", "fast")),
        ("schedule: junk\nschedule_config: {frequency: weeks, days_of_week: [1, 5], "
         "at_hour: 9}", "schedule",
         Calendar("weeks", days_of_week=(1, 5), at_hour=9)),
        ("trigger: 'pipe_failed: x'", "events", ("pipe_failed:x",)),
        ("trigger: [a_word, 'file_changed:in/**/*.md']", "events", ("a_word", "file_changed:in/**/*.md")),
        ("trigger:\n  events:\n    - pipe_completed:x\n    - ~", "events", ("pipe_completed:x",)),
        ("retries: 4", "retries", RetryRules(4)),
        ("timeout: 1.5", "timeout_seconds", 1.5),
        ("timeout: 1 day 2 hours", "timeout_seconds", 93600),
        ("agent: command\ncommand: ./a.sh 'two words'", "plan", Plan("command", ("./a.sh", "two words"))),
        ("command: [./a.sh, ' x', '']", "plan", Plan("command", ("./a.sh", " x", ""))),
    ],
)  # fmt: skip
def test_varieties(header: str, field: str, value: object) -> None:
    assert getattr(usable(header), field) == value


@pytest.mark.parametrize(
    ("header", "line", "key", "detail", "hint"),
    [
        ("a: b\ntimeout: 10:00", 3, "timeout", "no time above 0", "10m"),
        ("timeout: [1]", 2, "timeout", "must be text, not a list", "write timeout: 10m"),
        ("effort: hihg", 2, "effort", "'hihg' is not known", "low, medium, high"),
        ("schedule: continuous", 2, "schedule", "'continuous' is no schedule", "pipe.md(5)"),
        ("schedule_config: daily", 2, "schedule_config", "must be an object, not "
                                                         "a string", "frequency:"),
        ("schedule_config:\n  frequency: days\n  "
         "at_hour: 25", 4, "schedule_config.at_hour", "<= 23", "at_hour: 9"),
        ("timezone: Europe/Berln", 2, "timezone", "no time zone 'Europe/Berln'", "Europe/Berlin"),
        ("agent: command", 2, "agent", "needs a command", "command: ./agent.sh"),
        ("agent: command\ncommand: ./a.sh 'x", 3, "command", "cannot be split", "close the quote"),
        ("agent: command\ncommand: ''", 3, "command", "names no program", "./program"),
        ('preset: ["*", fast]', 2, "preset", "comes last", ""),
        ("trigger: {event: [x]}", 2, "trigger.event", "is not known", "events"),
        ("trigger: [not a name]", 2, "trigger", "is no event", "pipe_completed:NAME"),
        ("trigger: [pipe-completed:x]", 2, "trigger", "no event that happens here", "`pipe_completed`"),
        ("trigger: file_changed", 2, "trigger", "does not say of what", "file_changed"),
        ("retries: 21", 2, "retries.max", "from 0 to 20", ""),
        ("retries: {maxx: 3}", 2, "retries.maxx", "did you mean 'max'?", "max, on_timeout, delay"),
        ("limits: {memory: 5 apples}", 2, "limits.memory", "no whole number from", "512MB"),
        ("redact: '('", 2, "redact", "no regular expression", "escape"),
        ("budget: 5", 2, "budget", "must be a map", "daily_tokens, daily_cost"),
        ("limits: {timeout: 5m}", 2, "limits.timeout", "is not known", "write timeout: 5m, beside "
                                                                       "limits"),
        ("budget: {cost: 5}", 2, "budget.cost", "is not known", "keys are daily_tokens, "
                                                                "daily_cost"),
        ("trigger: {schedule: hourly}", 2, "trigger.schedule", "is not known", "write schedule: '@hourly'"),
        ("trigger: {paths: [x]}", 2, "trigger.paths", "is not known", "file_changed:"),
        ("schedule_config: {frequency: days, tz: UTC}", 2, "schedule_config.tz", "unknown key", "write timezone: UTC"),
        ("schedule_config: {cron: 0 9 * * *}", 2, "schedule_config.cron", "unknown key", "write schedule: 0 9 * * *"),
        ("timeout: {minutes: 5}", 2, "timeout", "must be text", "write timeout: 10m"),
    ],
)  # fmt: skip
def test_mistakes(header: str, line: int, key: str, detail: str, hint: str) -> None:
    found = broken(header).problem
    assert (found.line, found.pointer) == (line, f"/{key.replace('.', '/')}"), found
    assert (detail in found.message, hint in (found.hint or "")) == (True, True), found


def test_a_mistake_is_the_error_of_every_surface_and_a_file_that_is_no_text_is_one() -> None:
    with pytest.raises(ConfigError) as caught:
        models.usable(broken("enabled: yes\ntimeout: soon"))
    error = caught.value
    assert (error.unit, error.extra["pointer"], error.extra["line"]) == ("pipe:mine", "/timeout", 3)
    found = read(b"---\na: \xff\n---\n")
    assert isinstance(found, BrokenPipe)
    assert (
        sentence(found.problem)
        == "/pipes/mine/pipe.md:2: not UTF-8: byte 0xff (invalid start byte)"
    )


@pytest.mark.parametrize(
    ("header", "warning"),
    [
        ("scedule: every 5m", "scedule has no effect here (line 2); did you mean 'schedule'?"),
        ("permissions: reader", "permissions is not enforced"),
        ("allow-frames: false", "allow-frames is not enforced"),
        ("disabled: true", "disabled has no effect here (line 2); write enabled: false"),
        ("connections: [slack]", "connections has no effect here"),
        ("agent: claude\ncommand: x", "command has no effect with agent: claude"),
        ("trigger: {events: [a], sources: [b]}", "trigger.sources has no effect here"),
        ("trigger: [workflow_event(a b)]", "'workflow_event(a b)' never happens here"),
        ("schedule: daily", "daily at"),
        *(
            (header, "")
            for header in ("permissions:", "permissions: admin", "connections: []", "x-own: {a: 1}")
        ),
    ],
)
def test_warnings(header: str, warning: str) -> None:
    found = usable(header).warnings
    assert len(found) == bool(warning)
    assert warning in "".join(found)


def test_names_that_no_pipe_can_have() -> None:
    for name in ("", "a b", "a/b", ".hidden", "-x", "queue", "x" * 101):
        assert name_trouble(name)
    assert name_trouble("A-pipe_1.x") is None


# -- the front matter: found, read, changed by key -------------------------------------------------

BODY = "\n# Do it\n\n```yaml\nenabled: false\n---\n```\n\n---\nMore {{start_time}} $x\n"


def fault(text: str) -> Problem:
    with pytest.raises(DocumentError) as caught:
        parse(text, "pipe.md")
    return caught.value.problem


@pytest.mark.parametrize(
    ("text", "header", "body"),
    [
        ("---\na: 1\n-----\nDo it.", {"a": "1"}, "Do it."),
        ("---\n---", {}, ""),
        ("---\na: {b: [c, 'd e']}\nf:\n- g\n-\n  h: "
         "~\n---\n", {"a": {"b": ["c", "d e"]}, "f": ["g", {"h": None}]}, ""),
        ("---\na: 9:30\nb: 010\nc: yes\nd: 2026-01-01\ne: 0x1F\ng: ''\n---\n",
         {"a": "9:30", "b": "010", "c": "yes", "d": "2026-01-01", "e": "0x1F", "g": ""}, ""),
    ],
)  # fmt: skip
def test_a_file_is_header_and_body(text: str, header: object, body: str) -> None:
    found = parse(text, "pipe.md")
    assert (found.header.value, found.body) == (header, body)


@pytest.mark.parametrize(
    ("text", "line", "detail", "hint"),
    [
        ("", 1, "there is no front matter", "begin the file with a line ---"),
        ("---\na: 1\n--- b: 2\nx", 1, "never closed", "begin the file"),
        # What people meet in YAML.
        (pipe_text("a: 1\nschedule: */30 * * * *  # often"), 3, "no valid YAML", "quote it: schedule: '*/30 * * * *'"),
        (pipe_text("preset: [fast, *]"), 2, "no valid YAML", 'quote what is odd: "*"'),
        (pipe_text("description: Notes: the day's"), 2, "no valid YAML", "quote it: description: "
                                                                         "'Notes: the day''s'"),
        (pipe_text("argument-hint: [a] [b]"), 2, "no valid YAML", "quote it: argument-hint: '[a] "
                                                                  "[b]'"),
        (pipe_text("title: 'it's'"), 2, "no valid YAML", "quote it: title: 'it''s'"),
        (pipe_text('title: "x" y'), 2, "no valid YAML", "quote it: title: '\"x\" y'"),
        (pipe_text("description: Use: it\n  so\na: 1"), 2, "no valid YAML", "write it as a block: "
                                                                            "description: |"),
        (pipe_text("description: Use\n  it: hi\na: [b"), 3, "no valid YAML", "write it as a block: "
                                                                             "description: |"),
        (pipe_text("a: 1\n\tb: 2"), 3, "no valid YAML", "use spaces"),
        (pipe_text("a: [b, c\nd: e"), 2, "no valid YAML", "close what is opened"),
        (pipe_text("- a\n- b"), 2, "not made of lines of key: value", "begin the file"),
        (pipe_text("a: 1\nb: 2\na: 3"), 4, "'a' stands twice", ""),
        (pipe_text("a: [" + "b, " * 20_000 + "]"), 2, "more than 10000 values", ""),
    ],
)  # fmt: skip
def test_every_fault_has_line_and_cure(text: str, line: int, detail: str, hint: str) -> None:
    found = fault(text)
    assert (found.line, detail in found.message, hint in (found.hint or "")) == (
        line,
        True,
        True,
    ), found


@given(st.text(max_size=300))
@example("\xa0\xa0\U00010000\x1f")
@example("a: \ufeffb")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\nbody\n"):
        try:
            parse(whole, "pipe.md")
        except DocumentError as error:
            assert error.problem.message


@pytest.mark.parametrize(
    ("header", "changes", "expected"),
    [
        ("", {"enabled": False}, "enabled: false\n"),
        ("enabled:   true   # why\nb: 2\n", {"enabled": False}, "enabled:   false   # why\nb: 2\n"),
        ("enabled: no  # why\n", {"enabled": False}, "enabled: false  # why\n"),
        ("enabled: 'false'\n", {"enabled": False}, "enabled: 'false'\n"),
        ("enabled:\nb: 2\n", {"enabled": False}, "enabled: false\nb: 2\n"),
        ('"enabled" : true\n', {"enabled": False}, '"enabled" : false\n'),
        ("preset: # which\n  - a  # first\n  - b  # second\n\n# "
         "more\nc: 1\n", {"preset": ["x", "*"]},
         "preset: [x, '*']  # second\n\n# more\nc: 1\n"),
        ("preset: [a,\n  b] # c\nd: 1\n", {"preset": []}, "preset: [] # c\nd: 1\n"),
        ("d: |\n  one\n\n  two\n\n\ne: 1\n", {"d": "x: y"}, "d: 'x: y'\n\n\ne: 1\n"),
        ("d: >-\n  one\n", {"d": 'two\nlin"es\u2028'}, 'd: "two\\nlin\\"es\\u2028"\n'),
        ("a: 1\nb: 2\nc: 3\n", {"b": None}, "a: 1\nc: 3\n"),
        ("a: 1\nb:\n  - x\n  - y # z\n\nc: 3\n", {"b": None}, "a: 1\n\nc: 3\n"),
        ("b: [{k: v}]\nd:\n  - k:\n    - |\n     y\n\nc: 3\n", {"b": None, "d": None}, "\nc: 3\n"),
        ("a: 1\n", {"a": None}, ""),
        ("a: 1\n", {"r": {"max": 3, "on": True, "x y": [None, 1.5]}},
         "a: 1\nr: {max: 3, 'on': true, x y: [null, 1.5]}\n"),
        ("a: 1\n", {"s": "*/30 * * * *", "t": "9:30", "u": "it's", "v": "", "w": "no"},
         "a: 1\ns: '*/30 * * * *'\nt: '9:30'\nu: it's\nv: ''\nw: 'no'\n"),
        ("a: 1\n", {"s": "every 10m", "t": "600", "u": "pipe_completed:x", "v": "~/x", "w": "./a.sh"},
         "a: 1\ns: every 10m\nt: '600'\nu: 'pipe_completed:x'\nv: ~/x\nw: ./a.sh\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_edits(header: str, changes: dict[str, Value], expected: str, newline: str) -> None:
    for begin in ("---\n", "\ufeff\n---\n"):
        before = f"{begin}{header}---\n{BODY}".replace("\n", newline)
        after = set_keys(before, changes)
        assert after == f"{begin}{expected}---\n{BODY}".replace("\n", newline)
        assert set_keys(after, changes) == after


@pytest.mark.parametrize(
    ("text", "changes", "detail"),
    [
        ("# no front matter", {"a": "1"}, "no front matter"),
        ("---\na: *x\n---\n", {"a": "1"}, "anchors, aliases"),
        ("---\n{a: 1}\n---\n", {"a": "2"}, "in braces"),
        ("---\n? a\n: 1\n---\n", {"a": "2"}, "not of the form a: value"),
        (
            "---\na: |+\n  x\nb: 1\n\n---\n",
            {"b": None},
            "cannot be changed without changing other keys",
        ),
        ("---\na: 1\n---\n", {"a b": "2"}, "no key of front matter"),
    ],
)
def test_what_cannot_be_edited_is_refused(
    text: str, changes: dict[str, Value], detail: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        set_keys(text, changes)
    assert detail in caught.value.detail
    assert caught.value.hint


# -- whole files -----------------------------------------------------------------------------------

# as people and programs write them; the last: what is warned of
FILES: dict[str, tuple[str, dict[str, Any], str]] = {
    "windows": (
        "\ufeff---\r\nname: Fenêtre\r\nschedule: every "
        "1h\r\n---\r\n\r\nBonjour\r\n\r\n---\r\nSuite\r\n",
        {"title": "Fenêtre", "schedule": Every(3600), "body": "Bonjour\r\n\r\n---\r\nSuite"},
        "",
    ),
    "spaced": (
        "\n\n---   \n\n# made by a program\n\nschedule : every 4h\n\n---\t\n\n\n  Indented "
        "first.\n",
        {"schedule": Every(14400), "body": "  Indented first."},
        "",
    ),
    "presets-flush": (
        '---\nname: presets-flush\npreset:\n- fast\n- good\n- "*"\nmodel: 010\n---\nx\n',
        {"presets": ("fast", "good", "*"), "model": "010", "title": None, "schedule": Manual()},
        "",
    ),
    "older-words": (
        "---\nname: older\nagent: pi\npreset: pi-agent\nmodel: auto\nlookback: 1h\nconfig:\n  "
        "vault_path: ~/notes\n"
        "allow-apps: [Mail]\n---\nFrom {{start_time}} to {{end_time}} in {{vault_path}} cost $5\n",
        {
            "presets": ("auto",),
            "model": None,
            "body": "From {{start_time}} to {{end_time}} in {{vault_path}} cost $5",
        },
        "lookback config allow-apps",
    ),
    "rights": (
        "---\nschedule: every 30m\npermissions:\n  allow:\n    - Api(GET /search)\n  deny: [App(a, "
        "b), Window(*x*)]\n"
        "connections:\n  - slack\n  - mcp:notes\n---\nx\n",
        {},
        "permissions connections",
    ),
    "from-a-store": (
        "---\nsource_slug: someone/thing\ninstalled_version: 3\nsource_hash: "
        "12345678901234567890\nfeatured: true\n"
        "icon: 🗒️\nartifacts:\n- path: ./output/a.md\n  title: Résumé — 日本\n  kind: md\n---\nx\n",
        {},
        "",
    ),
    "hostile-body": (
        "---\nschedule: every 60m\nenabled: true\n---\n# Set up\n\n```yaml\n---\nenabled: "
        "false\nschedule: never\n---\n"
        "```\n\nenabled: false\n\n---\n\n$HOME `x` {{a}} %Y &amp; *b* @c\n",
        {"enabled": True, "schedule": Every(3600)},
        "",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_each_file_becomes_what_it_says_and_is_switched_by_one_line(name: str) -> None:
    before, fields, warned = FILES[name]
    found = read(before, name)
    assert isinstance(found, PipeDefinition), found
    assert {key: getattr(found, key) for key in fields} == fields
    assert [each.split()[0] for each in found.warnings] == sorted(warned.split(), key=before.index)
    for enabled in (True, False):
        after = set_keys(before, {"enabled": enabled})
        other = read(after, name)
        assert isinstance(other, PipeDefinition)
        assert (other.enabled, other.warnings, other.body) == (enabled, found.warnings, found.body)
        assert after[parse(after, "").body_start :] == before[parse(before, "").body_start :]
        differing = set(before.splitlines(keepends=True)) ^ set(after.splitlines(keepends=True))
        assert all(each.startswith("enabled:") for each in differing)


def test_an_example_is_a_pipe_without_a_warning_and_the_manual_page_has_every_key_and_real_schedules() -> (
    None
):
    for folder in EXAMPLES.iterdir():
        found = read_pipe(folder)
        assert isinstance(found, PipeDefinition), found
        assert (found.warnings, bool(found.description), bool(found.title)) == ((), True, True)
    page = (EXAMPLES.parents[2] / "man" / "man5" / "pipe.md.5").read_text()
    text = page.replace("\\-", "-").replace("\\ ", " ")
    assert [key for key in USED if not re.search(rf"\b{key}\b", text)] == []
    for schedule in ("manual", "every 30m", "every 2 hours", "1d", "hourly", "daily at 9:30am", "weekday at 18:00",
                     "mon,thu at 8", "weekend at 12:00", "*/15 8-20 * * 1-5", "@daily",
                     "at 2099-01-01T09:00:00Z",
                     "2026-12-01 10:00"):  # fmt: skip
        assert schedule in text
        usable(f"schedule: '{schedule}'")


def test_retries_of_a_command_have_an_effect_only_after_a_timeout() -> None:
    for retries, count in (("3", 1), ("{max: 3}", 1), ("0", 0), ("{max: 3, on_timeout: yes}", 0)):
        found = usable(f"command: ./a.sh\nretries: {retries}")
        assert len([each for each in found.remarks if each.key == "retries"]) == count
    assert usable("agent: pi\nretries: 3").remarks == ()
