"""A tool that reports the state of its process."""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

FOLDER = os.getcwd()
# IMPORTS


def read(path):
    with open(path) as file:
        return file.read()


def status():
    lines = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
    names = (
        "Umask",
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "NoNewPrivs",
        "Seccomp",
        "Threads",
        "Cpus_allowed",
        "Groups",
    )
    return {name: lines[name].strip() for name in names}


def files():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + number)
        except OSError:
            continue
        found.append(target.partition(":")[0].partition("#")[0])
    return sorted(found)


def own(module, *names):
    loaded = sys.modules.get(module)
    return [plain(getattr(loaded, name, None)) for name in names]


def plain(value):
    return repr(value).partition(" at 0x")[0]


def facts():
    import atexit
    import gc
    import resource
    import signal
    import threading
    import time

    asyncio, logging = sys.modules.get("asyncio"), sys.modules.get("logging")
    changes, reads = sys.modules.get("changes"), sys.modules.get("reads")
    try:
        "".encode("px_own")
        codec = True
    except LookupError:
        codec = False
    private = ("PX_", "NOTIFY_SOCKET")
    return {
        "status": status(),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "signals": [
            str(signal.getsignal(number)).partition(" at ")[0] for number in (15, 2, 10, 12)
        ],
        "cwd": os.getcwd(),
        "env": {name: value for name, value in os.environ.items() if not name.startswith(private)},
        "path": sys.path,
        "argv": sys.argv,
        "meta_path": [getattr(each, "__name__", "?") for each in sys.meta_path],
        "path_hooks": [getattr(each, "__name__", "?") for each in sys.path_hooks],
        "locale": str(__import__("_locale").setlocale(6, None)),
        "hooks": [plain(sys.excepthook), plain(sys.displayhook), *own("threading", "excepthook")],
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count()],
        "native_id": threading.main_thread().native_id == os.getpid(),
        "warnings": [repr(each) for each in sys.modules["warnings"].filters]
        if "warnings" in sys.modules
        else [],
        "timeout": __import__("socket").getdefaulttimeout(),
        "decimal": sys.modules["decimal"].getcontext().prec if "decimal" in sys.modules else None,
        "children": len(read(f"/proc/self/task/{os.getpid()}/children").split()),
        "files": files(),
        "timer": [signal.getitimer(kind)[1] or signal.getitimer(kind)[0] > 0 for kind in (0, 1, 2)],
        "nice": os.nice(0),
        "oom": read("/proc/self/oom_score_adj"),
        "streams": [type(sys.stdout).__name__, sys.stdout.encoding, sys.stderr.encoding],
        "builtins": sorted(name for name in dir(__builtins__) if name.startswith("made")),
        "json": sys.modules["json"].__name__,
        "atexit": atexit._ncallbacks(),
        "start_method": own("multiprocessing.context", "_default_context") != ["None"]
        and sys.modules["multiprocessing"].get_start_method(allow_none=True),
        "tempdir": own("tempfile", "tempdir"),
        "zone": time.tzname,
        "policy": type(asyncio.get_event_loop_policy()).__name__ if asyncio else None,
        "root": [logging.root.level, len(logging.root.handlers)] if logging else None,
        "codec": codec,
        "faulthandler": "faulthandler" in sys.modules and sys.modules["faulthandler"].is_enabled(),
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "modules": sorted(sys.modules),
        "main": [__name__, os.path.basename(__file__)],
        "seen": getattr(reads or changes, "seen", None),
        "given": changes.kept.getstate()[1][:3] if hasattr(changes, "kept") else None,
    }


class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        body = json_dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"ok": True} if self.path == "/healthz" else SCHEMA)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(FACTS)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    json_dumps = json.dumps
    FACTS = facts()
    # MORE
    SCHEMA = json.loads(read(os.path.join(FOLDER, "tool.json")))
    HTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
