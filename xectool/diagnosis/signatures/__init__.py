"""From the text of any training log to its first cause, by known signatures.

``lines`` reads files of any size and kind as clean lines, ``origin`` takes rank and time off a line, ``tracebacks``
follows chained exceptions, ``known`` and ``known_ranks`` hold the signatures, ``scan`` finds them, ``ranking`` orders
what was found.
"""

from xectool.diagnosis.signatures.ranking import LogCause, rank_causes
from xectool.diagnosis.signatures.scan import Scan, scan_file

__all__ = ["LogCause", "Scan", "rank_causes", "scan_file"]
