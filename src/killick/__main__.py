"""`python -m killick` is `killick`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder, whose files must not stand in for libraries

    from killick.cli import main

    sys.exit(main())
