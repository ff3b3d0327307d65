"""`python -m dsv4 info | demo | check`."""

from __future__ import annotations

import argparse
import sys


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dsv4", description="DeepSeek-V4 sparse MLA decode"
    )
    parser.add_argument(
        "command",
        choices=("info", "demo", "check"),
        help="info: this build and machine. demo: a small decode, checked against its definition. "
        "check: a self-test of an engine where it runs, for a bug report",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the command")
    options = parser.parse_args(argv)
    try:
        if options.command == "info":
            from .info import report

            sys.stdout.write(report() + "\n")
            return 0
        if options.command == "check":
            from .check import main as check

            return check(options.arguments)
        from .demo import main as demo

        return demo(options.arguments)
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
