"""jsonschema comes without the checkers of formats: their grammar would cost every start a second and a half."""

from __future__ import annotations

import subprocess
import sys


def test_the_grammar_of_formats_is_not_built_at_import() -> None:
    names = "'lark', 'rfc3987_syntax', 'rfc3986_validator'"
    code = f"import sys, supervisord_py.tools.declaring.schema; print({{{names}}} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.strip() == "set()"


def test_others_may_import_it_afterwards() -> None:
    code = "import supervisord_py.tools.declaring.schema, rfc3987_syntax; print(rfc3987_syntax.__name__)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.strip() == "rfc3987_syntax"
