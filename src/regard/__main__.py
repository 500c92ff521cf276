"""`python -m regard`, for environments whose scripts are not on the path."""

import sys

from regard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
