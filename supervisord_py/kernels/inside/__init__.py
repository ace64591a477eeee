"""What runs in the kernel's own interpreter: launcher, capture of output, writer of cell files,
prelude.

Law: nothing here imports the rest of supervisord_py, because the interpreter is the project's:
Python 3.8 or later with ipykernel and what that brings. `launch.py` is started by its path and
loads this folder as the package `px_inside`, so that nothing of it is on `sys.path`; imports within
it are relative for that reason. `cell_writer` is of use to the daemon too: it needs the standard
library alone.
"""
