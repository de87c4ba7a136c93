"""``python -m inferlens`` is the command line. Python puts the working directory first; here it comes last."""

import sys

if not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

from inferlens.cli.main import main

main()
