"""Prints the weight of each folder: lines (comments and blanks included), files, classes and test functions."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def row(name, files):
    """Print one line; return its figures."""
    texts = [file.read_text() for file in files]
    figures = [
        sum(text.count("\n") for text in texts),
        len(files),
        sum(len(re.findall(r"^\s*class \w", text, re.MULTILINE)) for text in texts),
        sum(len(re.findall(r"^\s*(?:async )?def test_", text, re.MULTILINE)) for text in texts),
    ]
    print(f"{name:34}" + "".join(f"{figure:>9,}" for figure in figures))


def main():
    """Product first, then tests; a total after each."""
    print(f"{'':34}{'lines':>9}{'files':>9}{'classes':>9}{'tests':>9}")
    for title, roots in (("product", ("supervisord_py", "cli")), ("tests", ("tests",))):
        whole = []
        for root in roots:
            folders = {}
            for file in sorted((ROOT / root).rglob("*.py")):
                folder = file.relative_to(ROOT).parts[:2]
                folders.setdefault(
                    "/".join(folder) if len(folder) == 2 and not folder[1].endswith(".py") else root, []
                ).append(file)
            for name, files in sorted(folders.items()):
                row(name, files)
                whole += files
        row(f"{title}, all", whole)
        print()


if __name__ == "__main__":
    main()
