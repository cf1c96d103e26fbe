"""`python -m cudal2`: the same as the `cudal2` command."""

from __future__ import annotations

import sys

from cudal2.cli import main

sys.exit(main())
