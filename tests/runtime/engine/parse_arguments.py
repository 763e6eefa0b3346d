"""Parse commands with vLLM's own argument parser: JSON list of argv on stdin, exit 1 naming the first that fails.

PYTHONPATH=.:runtime python -m tests.runtime.engine.golden | <python of an engine image> parse_arguments.py
"""

import json
import os
import sys

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args  # pyright: ignore
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args  # pyright: ignore


def main() -> int:
    commands: list[list[str]] = json.load(sys.stdin)
    for argv in commands:
        # No abbreviations: a misspelt name must not pass as the beginning of another.
        parser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
        try:
            validate_parsed_serve_args(parser.parse_args(argv[3:]))
        except (SystemExit, ValueError, TypeError) as error:
            print(f"vLLM refuses: {' '.join(argv)}\n{error}", file=sys.stderr)
            return 1
    print(f"{len(commands)} commands parsed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
