"""What others write of tree speculation, read as it is: top-k rows, retrieve arrays, trees, whole rounds, and
acceptance records, from JSON, Python literals, printouts and array files.

What a format lacks stays None and is listed as missing; nothing is guessed.
"""

from ddtree.foreign.acceptance import AcceptanceRecord
from ddtree.foreign.errors import ForeignError
from ddtree.foreign.files import read_bytes
from ddtree.foreign.forms import Foreign, recognise
from ddtree.foreign.trees import ForeignTree
from ddtree.foreign.walk import ForeignWalk, walk_tree

__all__ = [
    "AcceptanceRecord",
    "Foreign",
    "ForeignError",
    "ForeignTree",
    "ForeignWalk",
    "read_bytes",
    "recognise",
    "walk_tree",
]
