"""Run by a candidate interpreter: say in one line of JSON what it is. Any Python 3, standard
library only.

The interpreter is started isolated (`-I`), so that the working directory and PYTHON* variables
cannot change the answer, but packages of the user count where the kernel would see them.
"""

import importlib.util
import json
import os
import platform
import re
import site
import sys
import sysconfig

MARK = "px-self-report "
NEEDED = ("ipykernel", "IPython", "zmq", "jupyter_client", "tornado", "traitlets")


def report() -> "dict[str, object]":
    isolated = sys.prefix != getattr(sys, "base_prefix", sys.prefix)
    user = "" if isolated or os.environ.get("PYTHONNOUSERSITE") else site.getusersitepackages()
    if user and user not in sys.path and os.path.isdir(user):
        sys.path.append(user)
    tag, machine = (
        sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag or "python",
        platform.machine(),
    )
    tag = tag if machine in tag else tag + "-" + machine
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return {
        "version": list(sys.version_info[:3]),
        "executable": sys.executable,
        "lacking": [name for name in NEEDED if importlib.util.find_spec(name) is None],
        "pip": importlib.util.find_spec("pip") is not None,
        # the user's, there or not
        "packages": sorted({each for each in (*packages, user) if each}),
        # of its overlay, as others that can share compiled packages
        "tag": re.sub(r"[^A-Za-z0-9._-]", "_", tag),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + MARK + json.dumps(report()) + "\n")
