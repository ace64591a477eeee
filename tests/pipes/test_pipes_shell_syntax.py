"""What of a command only a shell understands, and how it is written for one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from pipe_texts import broken, usable
from supervisord_py.pipes.shell_syntax import for_a_shell, shell_syntax, unexpanded

FOR_A_SHELL = {
    "echo one && touch two": "&&",
    "make || true": "||",
    "ps aux | grep pxd": "|",
    "ps aux|grep pxd": "|",
    "tar czf x.tgz .; echo done": ";",
    "echo one;echo two": ";",
    "./sync.sh >> log 2>&1": ">>",
    "./sync.sh 2>/dev/null": "2>",
    "sort < names": "<",
    "sort<names": "<",
    "./serve &": "&",
    "sleep 5& echo on": "&",
    "tar czf x-$(date +%F).tgz .": "$(…)",
    'echo "today is $(date)"': "$(…)",
    "echo `date`": "backticks",
    "cd /srv/app": "cd",
    "cd /srv/app && ./sync.sh": "cd",
    "source venv/bin/activate": "source",
    ". ./env": ".",
    "export A=1": "export",
    "PYTHONPATH=/x python job.py": "PYTHONPATH",
    "A= B=2 ./job": "A=",
    "echo one\necho two": "several lines",
    "for f in a b; do echo $f; done": "for",
    "if true; then echo; fi": "if",
    "(echo one)": "(",
    "[[ -e x ]]": "[[",
}


@pytest.mark.parametrize(("text", "word"), FOR_A_SHELL.items())
def test_what_only_a_shell_reads_is_refused_with_the_line_to_write(text: str, word: str) -> None:
    found = shell_syntax(text)
    assert found is not None
    assert word in found
    problem = broken(f"command: |\n  {text.replace(chr(10), chr(10) + '  ')}").problem
    assert "without a shell" in problem.message
    cure = (problem.hint or "").removeprefix("write ").rpartition("; or quote")[0]
    argv = yaml.safe_load(cure)["command"]
    assert usable(cure).plan.command == tuple(argv), "the cure is taken as it stands"
    assert argv[0] in {"sh", "bash"}


ARGUMENTS = (
    "jq '.a | .b'", 'grep -E "a|b" file', 'echo "a && b"', "echo 'a; b' \"c > d\"",
    "find . -exec rm {} \\;",
    "curl https://example.org/?a=1&b=2", "python -c 'import sys; print(sys.argv)'",
    "sh -c 'cd /x && ./sync.sh > log'",
    "awk '{print $1}'", "date +%F", "find . -name '*.txt'", "find . -name *.txt", "env A=1 ./job",
    "./job A=1 --b=2",
    "echo 'one\ntwo'", "rsync -a \\\n  src \\\n  dst", "echo \\$(x\\)", "echo '$(date)' '`date`'",
    "./cd.sh source",
    "echo a\\|b", 'printf "%s\\n" "it\'s; fine"', "python -c print(1)", "./a.sh",
)  # fmt: skip


@pytest.mark.parametrize("text", ARGUMENTS)
def test_arguments_are_arguments_whatever_they_hold(text: str) -> None:
    assert shell_syntax(text) is None


def test_the_command_of_another_agent_has_no_effect_and_is_no_mistake() -> None:
    (remark,) = usable("agent: claude\ncommand: a && b").remarks
    assert remark.message == "command has no effect with agent: claude"


def test_a_line_goes_on_behind_a_backslash() -> None:
    assert usable("command: |\n  rsync -a \\\n    src dst\n").plan.command == (
        "rsync",
        "-a",
        "src",
        "dst",
    )


def test_the_cure_does_what_a_shell_would_have_done(tmp_path: Path) -> None:
    """Also where the shell of the machine has no `source`, and its quotes are YAML's."""
    (tmp_path / "env").write_text("A=sourced\n")
    for text, said in {
        "echo 'it''s' && echo two": "its\ntwo\n",
        'source env && echo "$A"': "sourced\n",
        "echo one\nfalse\necho two": "one\n",
        "cat <<< here": "here\n",
    }.items():
        argv = yaml.safe_load(for_a_shell(text))
        done = subprocess.run(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
        assert done.stdout == said


PASSED_ON: dict[str, str | None] = {
    "rm -f /x/*.log": "/x/*.log",
    "rm -f /x/a?.log": "/x/a?.log",
    "rm -f [a-c].log": "[a-c].log",
    'ls "/my dir"/*.md': "/*.md",
    "find . -name *.log": "*.log",
    "./*.sh a": "./*.sh",
    "cat ~/.bashrc": "~/.bashrc",
    "ls ~": "~",
    "ls ~anna/x": "~anna/x",
    "'./a b' ~/x": "~/x",
    "rm $HOME/*.log": "$HOME",
    "find . -name '*.log' -o -name \"*.md\" \\*.x": None,
    "~/bin/tool HEAD~1 a~ ~1": None,
    "ls '~/x' \"~/x\" \\~/x": None,
    "./a '/x'~/y --dir=~/z": None,
    "curl https://example.org/?a=1": None,
    "sh -c 'rm *.log ~/x'": None,
    "[ -e x ]": None,
}


@pytest.mark.parametrize(("text", "word"), PASSED_ON.items())
def test_what_a_shell_would_replace_is_told_unless_it_is_quoted(
    text: str, word: str | None
) -> None:
    assert unexpanded(text) == word
    remarks = usable(f"command: |\n  {text}").remarks
    assert [word in remark.message for remark in remarks] == ([] if word is None else [True])
    if word is not None and not word.startswith("$"):
        assert "[sh, -c, " in (remarks[0].hint or "")
        assert "quote it" in (remarks[0].hint or "")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ('[cd, /x, "&&", ls]', "cd /x && ls"),
        ("[cd, /x]", "cd /x"),
        ("[ls, '||', pwd, '>', out]", "ls || pwd > out"),
        ("[A=1, ./job, 'a b']", "A=1 ./job 'a b'"),
        ("[source, env, '&&', ./job]", ". ./env && ./job"),
        ("['cd /x && ls']", "cd /x && ls"),
        ("['ls | wc -l']", "ls | wc -l"),
    ],
)
def test_a_list_for_a_shell_is_refused_with_the_line_to_write(command: str, script: str) -> None:
    problem = broken(f"command: {command}").problem
    assert "without a shell" in problem.message
    cure = (problem.hint or "").removeprefix("write ")
    assert yaml.safe_load(cure)["command"] == ["sh", "-c", script]
    assert usable(cure).plan.command == ("sh", "-c", script)


@pytest.mark.parametrize(
    "command",
    [
        "[find, ., -exec, rm, '{}', ';']", "[cut, -d, '|', x]", "[grep, 'a && b', x]",
        "[sh, -c, 'cd /x && ls']",
        "[./my prog]", "[env, A=1, ./job]", "['./a b.sh']", "[rm, '*.log', ~/x]",
    ],
)  # fmt: skip
def test_a_word_of_a_list_is_an_argument(command: str) -> None:
    assert usable(f"command: {command}").remarks == ()


def test_a_variable_is_passed_on_as_it_stands_and_told() -> None:
    told = {
        "./a $HOME/x": "$HOME",
        'echo "in ${HOME}"': "${HOME}",
        "echo '$HOME' \\$HOME $5 $.a": None,
    }
    assert {text: unexpanded(text) for text in told} == told
    assert "$HOME is passed on as it stands" in usable("command: ./a $HOME/x").warnings[0]
    assert usable("command: [./a, $HOME/x]").warnings == ()
