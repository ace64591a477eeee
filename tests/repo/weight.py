"""Prints the weight of each folder: lines (comments and blanks included), files, classes and
test functions.
"""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNTED = (r"\n", r"\A", r"^\s*class \w", r"^\s*(?:async )?def test_")


def row(name, texts):
    """Print one line."""
    figures = [
        sum(len(re.findall(pattern, text, re.MULTILINE)) for text in texts) for pattern in COUNTED
    ]
    print(f"{name:34}" + "".join(f"{figure:>9,}" for figure in figures))


def main():
    """Product first, then tests; a total after each."""
    print(f"{'':34}{'lines':>9}{'files':>9}{'classes':>9}{'tests':>9}")
    for title, roots in (("product", ("supervisord_py", "cli")), ("tests", ("tests",))):
        folders = defaultdict(list)
        for file in sorted(file for root in roots for file in (ROOT / root).rglob("*.py")):
            root, *inner, _ = file.relative_to(ROOT).parts
            folders["/".join([root, *inner[:1]])].append(file.read_text())
        for name, texts in sorted(folders.items()):
            row(name, texts)
        row(f"{title}, all", [text for texts in folders.values() for text in texts])
        print()


if __name__ == "__main__":
    main()
