"""`python -m pxctl` is `pxctl`."""

import sys

from pxctl.main import main

if __name__ == "__main__":
    sys.exit(main())
