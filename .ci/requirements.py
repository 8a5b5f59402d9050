"""Print the requirements of pyproject.toml's named parts, one a line: dependencies, build, or an extra.

torch is installed by a command of its own, first, so that its version is never a resolver's choice.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
parts = {
    "dependencies": project["project"]["dependencies"],
    "build": [*project["build-system"]["requires"], "cmake>=3.22", "ninja"],
    **project["project"]["optional-dependencies"],
}
for name in sys.argv[1:]:
    print("\n".join(part for part in parts[name]))
