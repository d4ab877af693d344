"""`python -m kvreplay.experiments` is the `kvreplay` command."""

import sys

from .cli import main

sys.exit(main())
