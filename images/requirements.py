"""Print what one extra of pyproject.toml requires, for an image layer that holds the dependencies alone."""

import sys
from pathlib import Path

import tomllib


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join([*project["dependencies"], *project["optional-dependencies"][sys.argv[1]]]))


if __name__ == "__main__":
    main()
