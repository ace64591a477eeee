"""`python -m supervisord_py` is `pxd`."""

from supervisord_py.daemon.main import main

if __name__ == "__main__":
    main()
