"""The child: ``python -m xectool.training.memory_estimate estimate|measure QUESTION ANSWER`` (JSON files)."""

from __future__ import annotations

import sys

from xectool.rootio.lean import leave_out_pyarrow

if __name__ == "__main__":
    leave_out_pyarrow()  # as `xectool train` does, whose memory is measured here
    from xectool.training.memory_estimate.answering import main

    main(*sys.argv[1:4])
