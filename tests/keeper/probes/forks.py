"""A zygote that has imported nothing much: `forks.py FD`; what it forks runs the script that its
command line names.
"""

import runpy
import sys
from pathlib import Path

zygote = runpy.run_path(str(Path(__file__).parents[3] / "supervisord_py" / "zygote" / "main.py"))
argv = zygote["serve"](int(sys.argv[1]), lambda: None).take()
sys.argv = argv[next(place for place, word in enumerate(argv) if word.endswith(".py")) :]
runpy.run_path(sys.argv[0], run_name="__main__")
