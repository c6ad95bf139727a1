"""`python -m killick` is `killick`."""

import sys

from killick.cli import main

sys.exit(main())
