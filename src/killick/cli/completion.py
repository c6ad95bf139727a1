"""`killick completion`: a shell script, written by `shtab`, that completes options and names."""

import argparse

from killick.cli.parser import Parser

SHELLS = ("bash", "zsh", "fish")
HELP = "print a completion script for bash, zsh or fish"
USAGE = "killick completion SHELL"
EXAMPLES = """\
examples:
  killick completion bash > ~/.local/share/bash-completion/completions/killick
  killick completion zsh > ~/.zfunc/_killick
  killick completion fish > ~/.config/fish/completions/killick.fish

For zsh, add `fpath+=~/.zfunc` to ~/.zshrc before `compinit`. New shells use the script; write it
again after an update of Killick.
"""


def add(parser: Parser) -> None:
    """Add the options of this command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print the script."""
    import shtab

    from killick.cli import make_parser  # only now: this command is part of it

    print(shtab.complete(make_parser()[0], options.shell))
    return 0
