"""The counting of text-stats."""

from __future__ import annotations

from examples.running_tool import RunningTool, request_of


def test_it_counts(text_stats: RunningTool) -> None:
    answer = text_stats.post("/run", request_of("text-stats")).json()
    assert answer["frequent"] == [
        {"word": "sea", "count": 3},
        {"word": "the", "count": 3},
        {"word": "calm", "count": 1},
    ]
    counts = {key: answer[key] for key in ("characters", "words", "unique_words", "sentences", "paragraphs")}
    assert counts == {"characters": 63, "words": 12, "unique_words": 8, "sentences": 3, "paragraphs": 2}
    assert answer["average_word_length"] == 3.83
    assert answer["reading_seconds"] == 3.1


def test_an_empty_text_has_nothing_in_it(text_stats: RunningTool) -> None:
    answer = text_stats.post("/run", {"text": ""}).json()
    assert answer.pop("frequent") == []
    assert set(answer.values()) == {0}


def test_characters_are_what_a_reader_sees(text_stats: RunningTool) -> None:
    """A combining accent, a flag and a family of code points are one character each."""
    assert text_stats.post("/run", {"text": "e\u0301🇩🇪👨‍👩‍👧"}).json()["characters"] == 3


def test_words_of_other_scripts_are_words(text_stats: RunningTool) -> None:
    answer = text_stats.post("/run", {"text": "Привет, мир! Привет.", "shortest_word": 1}).json()
    assert answer["words"] == 3
    assert answer["frequent"][0] == {"word": "привет", "count": 2}


def test_the_settings_count(text_stats: RunningTool) -> None:
    body = {"text": "a bb ccc ccc dddd", "top": 1, "shortest_word": 3, "words_per_minute": 60}
    answer = text_stats.post("/run", body).json()
    assert answer["frequent"] == [{"word": "ccc", "count": 2}]
    assert answer["reading_seconds"] == 5


def test_the_stream_has_each_paragraph_and_then_the_whole(text_stats: RunningTool) -> None:
    body = request_of("text-stats")
    *paragraphs, whole = text_stats.post("/stream", body).lines()
    assert [(line["paragraph"], line["of"], line["words"]) for line in paragraphs] == [(1, 2, 10), (2, 2, 2)]
    assert whole == {"done": True} | text_stats.post("/run", body).json()
