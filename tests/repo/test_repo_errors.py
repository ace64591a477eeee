"""The exception tree: what every room raises."""

from __future__ import annotations

import pytest

from supervisord_py.errors import ConflictError, PxError


def test_a_copy_says_the_same_and_has_no_traceback() -> None:
    error = ConflictError("it runs", hint="wait", unit="pipe:x", execution=7)
    with pytest.raises(PxError) as caught:
        raise error
    again = caught.value.fresh()
    assert type(again) is ConflictError
    assert (again.problem(), again.args, again.__traceback__) == (error.problem(), error.args, None)
    assert again is not error
