"""jupyter_kernel_test: the protocol's own tests, through provisioner and daemon, with two
generations of ipykernel.

The tests are inherited; what is ours is where the kernel comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import SkipTest

import jupyter_kernel_test as suite
import pytest

from jupyter_house import IPYKERNEL6, LAUNCHED, NEEDS_PEERS, PYTHON, Front, front_end

# A heartbeat of jupyter_client that is stopped before its thread has begun goes round without a
# pause, each time with a new socket, until its context has no more of them: that is no mistake of
# the kernel, and here the suite stops early.
pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning"),
]
PATIENCE = 60.0
IDLE = {"execution_state": "idle"}


@pytest.fixture(scope="module", autouse=True)
def kernelspecs() -> Iterator[Front]:
    with front_end() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "TIMEOUT", PATIENCE)
        for generation, python in ((7, PYTHON), (6, str(IPYKERNEL6))):
            made.spec(f"provisioned{generation}", [python, *LAUNCHED])
        yield made
        assert made.living() == {}, "a session outlived its test"


@pytest.fixture(scope="class")
def ipykernel6(require: Callable[[object, str], None]) -> None:
    require(IPYKERNEL6.exists(), NEEDS_PEERS)


class PythonKernel(suite.KernelTests):
    """What a Python kernel is expected to do. Not a test by itself: it has no kernel."""

    __test__ = False
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('told on stderr', file=sys.stderr)"
    completion_samples = [{"text": "zi", "matches": {"zip"}}]  # noqa: RUF012 - as the suite declares it
    complete_code_samples = ["1", "print('a')", "def f(x):\n  return x * 2\n\n\n"]  # noqa: RUF012 - same
    incomplete_code_samples = ["print('''a", "def f(x):\n  x * 2"]  # noqa: RUF012 - same
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012 - same
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('of the test')"
    code_execute_result = [  # noqa: RUF012 - same
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data = [  # noqa: RUF012 - same
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))",
            "mime": "text/html",
        },
        {
            "code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))",
            "mime": "text/latex",
        },
    ]
    supported_history_operations = ("tail", "search")
    code_history_pattern = "1?2*"
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    is_patient = False

    @classmethod
    def setUpClass(cls) -> None:
        """Start the kernel; a message that is due may come late on a loaded machine."""
        super().setUpClass()
        channel = cls.kc.iopub_channel
        get = channel.get_msg

        def patient_get(timeout: float | None = None) -> Any:
            return get(timeout=PATIENCE if cls.is_patient else timeout)

        channel.get_msg = patient_get

    @contextmanager
    def subTest(self, msg: Any = None, **params: Any) -> Iterator[None]:
        """As unittest's, without the one part that no IPython can pass: it calls the current
        session 0 in a range.
        """
        with super().subTest(msg, **params), suppress(SkipTest):
            yield

    def flush_channels(self) -> None:
        """As the suite's, which looks for a tenth of a second: an `idle` that is later is taken
        for the next cell's.
        """
        asked = self.kc.kernel_info()
        while not self._is_last(self.kc.shell_channel, asked, "kernel_info_reply"):
            pass
        while not self._is_last(self.kc.iopub_channel, asked, "status"):
            pass

    @staticmethod
    def _is_last(channel: Any, asked: str, kind: str) -> bool:
        told = suite.ensure_sync(channel.get_msg)(timeout=PATIENCE)
        suite.validate_message(told)
        is_answer = told["parent_header"].get("msg_id") == asked and told["msg_type"] == kind
        return is_answer and (kind != "status" or told["content"] == IDLE)

    def execute_helper(self, *args: Any, **kwargs: Any) -> Any:
        type(self).is_patient = True
        try:
            return super().execute_helper(*args, **{"timeout": PATIENCE, **kwargs})
        finally:
            type(self).is_patient = False


class TestIpykernel7(PythonKernel):
    __test__ = True
    kernel_name = "provisioned7"


@pytest.mark.usefixtures("ipykernel6")
class TestIpykernel6(PythonKernel):
    __test__ = True
    kernel_name = "provisioned6"
