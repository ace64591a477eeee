"""Prints how densely the code is written: each package of ours, beside installed peers.

A thermometer, not a gate: no test fails for a figure. Except for the first column, the percentages
and the lines, a figure is a count per 1,000 code lines. A code line has at least one token that is
neither a comment nor part of a docstring.
"""

import ast
import importlib.util
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("aiohttp", "click")
WIDE = 100  # columns
BRANCHY = 10  # branches of a function
NO_CODE = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.IfExp,
    ast.BoolOp,
    ast.comprehension,
    ast.match_case,
    ast.With,
    ast.AsyncWith,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
RATES = ("tuple assignments", "conditionals", "comprehensions", "walruses", "comments")
HEADERS = (
    "tokens/line",
    "tuple =",
    "if-else",
    "compr.",
    "walrus",
    "comment",
    ">100 %",
    "branchy %",
)


def is_docstring(node):
    """Return whether a statement is a string that stands alone."""
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def is_tuple_assignment(node):
    """Return whether a statement assigns several values to several names at once."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return isinstance(node.targets[0], ast.Tuple)


def count_nodes(tree, counts):
    """Add what the syntax tree of a file shows; return the numbers of its docstrings' lines."""
    docstring_lines = set()
    for node in ast.walk(tree):
        if is_docstring(node):
            docstring_lines.update(range(node.lineno, node.end_lineno + 1))
        if is_tuple_assignment(node):
            counts["tuple assignments"] += 1
        if isinstance(node, ast.IfExp):
            counts["conditionals"] += 1
        if isinstance(node, COMPREHENSIONS):
            counts["comprehensions"] += 1
        if isinstance(node, ast.NamedExpr):
            counts["walruses"] += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counts["functions"] += 1
            branches = sum(isinstance(inner, BRANCHES) for inner in ast.walk(node))
            if branches >= BRANCHY:
                counts["branchy functions"] += 1
    return docstring_lines


def count_tokens(text, docstring_lines, counts):
    """Add the tokens, code lines and comment lines of a file."""
    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            counts["comments"] += 1
        if token.type in NO_CODE or token.start[0] in docstring_lines:
            continue
        counts["tokens"] += 1
        code_lines.update(range(token.start[0], token.end[0] + 1))
    counts["code lines"] += len(code_lines)


def measure(files):
    """Return the counts of all these files together."""
    counts = Counter()
    for path in files:
        text = path.read_text(encoding="utf-8")
        docstring_lines = count_nodes(ast.parse(text), counts)
        count_tokens(text, docstring_lines, counts)
        lines = text.splitlines()
        counts["lines"] += len(lines)
        counts["wide lines"] += sum(len(line) > WIDE for line in lines)
    return counts


def print_row(name, files):
    """Print one line of the table; nothing where there is no code."""
    counts = measure(files)
    code_lines = counts["code lines"]
    if not code_lines:
        return
    cells = [counts["tokens"] / code_lines]
    cells += [counts[rate] * 1000 / code_lines for rate in RATES]
    cells.append(100 * counts["wide lines"] / counts["lines"])
    cells.append(100 * counts["branchy functions"] / max(1, counts["functions"]))
    figures = "".join(f"{cell:>12.1f}" for cell in cells)
    print(f"{name:26}{figures}{counts['lines']:>9,}")


def packages(root):
    """Return the files of each package directly below a folder, and those beside them, by name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        if "examples" in path.parts:
            continue  # written as their users would write them
        inner = path.relative_to(root).parts[:-1][:1]
        found.setdefault("/".join((root.name, *inner)), []).append(path)
    return found


def main():
    """Print ours, by package and together, then the peers."""
    print(" " * 26 + "".join(f"{header:>12}" for header in HEADERS) + f"{'lines':>9}")
    everything = []
    for root in (ROOT / "supervisord_py", ROOT / "cli" / "pxctl"):
        for name, files in packages(root).items():
            print_row(name, files)
            everything += files
    print_row("ours, all", everything)
    for peer in PEERS:
        spec = importlib.util.find_spec(peer)
        if spec is None:
            sys.exit(f"density: {peer} is not installed here; run it by `make density`")
        print_row(peer, sorted(Path(spec.origin).parent.rglob("*.py")))


if __name__ == "__main__":
    main()
