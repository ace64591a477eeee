"""What holds for every recording of a real agent, whoever made the program; what each comes to is told beside it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordings import RECORDED, VERSION, read, recordings
from supervisord_py.pipes.agents.versions import parse_version, version_text

PROGRAMS = sorted(each.name for each in RECORDED.iterdir() if each.is_dir())
ALL = {f"{program}/{case}": it for program in PROGRAMS for case, it in recordings(program).items()}
RUNS = sorted(name for name, it in ALL.items() if it.case != VERSION)
SOMEBODYS_FOLDER = re.compile(r"(?<!\$bunfs)/(?:root|home/(?!user\b)\w+|work|tmp/(?!cc-socks|gemini-client)[\w.-]*)/")
IDENTIFIER = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|(?<=\bses_)\w+|(?<=\bmsg_)\w+|(?<=\bprt_)\w+")
NOBODYS = re.compile(r"0{8}-0000-4000-8000-0{10}\d\d|0{24}\d\d|mock\d+")


@given(st.sampled_from(RUNS), st.lists(st.integers(0, 8000), max_size=5))
def test_pieces_and_new_control_planes_change_nothing(name: str, cuts: list[int]) -> None:
    assert read(ALL[name], cuts) == read(ALL[name])


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_recorded_version_is_one_that_the_adapter_was_tested_with(program: str) -> None:
    recording = ALL[f"{program}/{VERSION}"]
    version, rule = parse_version(recording.stdout.decode() + recording.stderr), recording.spec.version
    assert version is not None
    assert rule.want is not None
    assert rule.tested is not None
    assert version_text(version) == recording.told["version"]
    assert version in rule.want
    assert version in rule.tested
    assert recording.told["argv"] == list(rule.argv)


@pytest.mark.parametrize("name", ALL)
def test_no_recording_tells_whose_machine_it_was(name: str) -> None:
    recording = ALL[name]
    text = recording.stdout.decode() + recording.stderr + str(recording.told)
    assert not SOMEBODYS_FOLDER.findall(text)
    assert all(NOBODYS.fullmatch(each) for each in IDENTIFIER.findall(text))
