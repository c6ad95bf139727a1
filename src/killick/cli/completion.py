"""`killick completion`: a script that tells a shell what may come next on the command line.

The script is made from the parser and needs nothing of Killick when a key is pressed. `shtab` writes
it; what is special about Killick's words (kinds of data such as `imagefolder:PATH`, lists with
commas) are functions that are added here.
"""

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import Any

from killick.cli.listing import CORRUPTIONS, DATA, NETWORKS, PROTOCOLS, SUITES, SYNTHETIC
from killick.cli.parser import Parser, inner_parsers
from killick.errors import InstallError
from killick.training.recipe_files import settings, shipped

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """\
examples:
  killick completion bash > ~/.local/share/bash-completion/completions/killick
  killick completion zsh > ~/.zfunc/_killick
  killick completion fish > ~/.config/fish/completions/killick.fish

where to put it:
  bash  in the folder above, which the package bash-completion reads; make it if it is not there.
        Without that package: add `source FILE` to ~/.bashrc.
  zsh   in any folder of $fpath: add `fpath+=~/.zfunc` to ~/.zshrc, before `compinit`.
  fish  in the folder above.

It holds for shells started after that. Write it again after an update of Killick.
"""


@dataclasses.dataclass(frozen=True)
class Values:
    """What may be the value of an option.

    Attributes:
        name: Of the functions that complete it.
        words: Whole values, or with a colon at their end the beginning of `kind:rest`.
        paths: Whether it may also be a path.
        paths_after: Whether a path comes after the colon.
        listed: Whether several may be given, with commas.
    """

    name: str
    words: tuple[str, ...]
    paths: bool = False
    paths_after: bool = False
    listed: bool = False


_KINDS = tuple(name.partition(":")[0] + ":" * (":" in name) for name in DATA)
_DATA = Values("data", _KINDS, paths_after=True)
_NETWORK = Values("network", (*(f"killick:{name}" for name in NETWORKS), "timm:", "torchvision:"))
_ARM = Values("arm", tuple(PROTOCOLS))
# By what the usage calls it, or by option.
VALUES = {
    "--data": _DATA,
    "--data.name": _DATA,
    "--validation": _DATA,
    "--network": _NETWORK,
    "--network.name": _NETWORK,
    "--recipe": Values("recipe", tuple(shipped()), paths=True),
    "--suite": Values("suite", (*SUITES, "all"), listed=True),
    "--corruptions": Values("corruption", CORRUPTIONS, listed=True),
    "--synthetic": Values("synthetic", (*SYNTHETIC, "none"), listed=True),
    "--severities": Values("severity", tuple("12345"), listed=True),
    "--baseline": Values("baseline", ("alexnet",), paths=True),
    "--device": Values("device", ("auto", "cpu", "cuda")),
    "--arm": _ARM,
    "ARM": _ARM,
    "MODEL": Values("model", ("timm:", "torchvision:"), paths=True),
}


def add(commands: Any, name: str) -> None:
    """Tell the parser of `killick` about this command."""
    parser = commands.add_parser(
        name,
        help="a script for bash, zsh or fish, so that the tab key completes",
        description="Print a script by which the tab key completes options, names and files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="killick completion SHELL",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print the script."""
    print(make_script(options.shell))
    return 0


def make_script(shell: str) -> str:
    """The script for a shell."""
    try:
        import shtab
    except ImportError as problem:
        raise InstallError(
            f"expected the library shtab for killick completion, found none ({problem}). Install it:"
            " pip install shtab."
        ) from problem
    # Only now: it is the parser that this command belongs to.
    from killick.cli import WITH_SETTINGS, make_parser

    parser, commands = make_parser()
    for name, command in commands.choices.items():
        inner = inner_parsers(command)
        for each in (command, *inner.values()):
            if name in WITH_SETTINGS and (each is not command or not inner):
                _add_settings(each)
            for action in each._actions:
                _attach_values(action)
    script = str(shtab.complete(parser, shell))
    return script + ("\n" + _BASH_WORDS if shell == "bash" else "")


def _add_settings(parser: Parser) -> None:
    """Every setting of a recipe, and every short name of one, as an option like the others."""
    from killick.training.recipe_files import SHORT

    fields = settings()
    names = {name: name for name in fields if name != "about"} | SHORT
    for name, setting in names.items():
        if f"--{name}" in parser.options:
            continue
        field = fields[setting]
        choices = ("true", "false") if field.type is bool else field.metadata["among"]
        about = field.metadata["about"].replace("%", "%%")
        parser.add_argument(f"--{name}", choices=choices, help=about)


def _attach_values(action: argparse.Action) -> None:
    """Say how the value of an option is completed, in the way that `shtab` reads."""
    if action.nargs == 0 or action.choices:
        return
    metavar = str(action.metavar)
    known = [VALUES[name] for name in (metavar, *action.option_strings) if name in VALUES]
    complete: Any = None
    if known:
        complete = _make_functions(known[0])
    elif metavar == "FOLDER":
        complete = "directory"
    elif action.type is Path or metavar == "IMAGES" or "FOLDER" in metavar or "FILE" in metavar:
        complete = "file"
    if complete is not None:
        action.complete = complete  # type: ignore[attr-defined]


def _make_functions(values: Values) -> dict[str, Any]:
    """A function for each shell, and how `shtab` is to call it."""
    name = f"_killick_{values.name}"
    functions = {
        "bash": "\n  ".join([f"{name}() {{", *_for_bash(values)]) + "\n}",
        "zsh": "\n  ".join([f"{name}() {{", *_for_zsh(values)]) + "\n}",
        "fish": "\n  ".join([f"function {name}", *_for_fish(values)]) + "\nend",
    }
    return {"bash": name, "zsh": name, "fish": f"({name})", "preamble": functions}


def _for_bash(values: Values) -> list[str]:
    """Lines that print what may stand in place of the word `$1`."""
    words = shlex.quote(" ".join(values.words))
    if values.listed:
        return [
            "local before=",
            "[[ $1 == *,* ]] && before=${1%,*},",
            f'compgen -P "$before" -W {words} -- "${{1##*,}}"',
        ]
    lines = [f'compgen -W {words} -- "$1"']
    if values.paths:
        lines += ['_killick_paths "" "$1"']
    if values.paths_after:
        lines += ['[[ $1 == *:* ]] && _killick_paths "${1%%:*}:" "${1#*:}"']
    return lines


def _for_zsh(values: Values) -> list[str]:
    """Lines that hand what may stand there to `compadd`."""
    whole = shlex.join(word for word in values.words if not word.endswith(":"))
    begun = shlex.join(word for word in values.words if word.endswith(":"))
    if values.listed:
        return [f"_sequence compadd - {whole}"]
    lines = ["if compset -P '*:'; then _files; return; fi"] if values.paths_after else []
    lines += [f"compadd -- {whole}"] if whole else []
    lines += [f"compadd -S '' -- {begun}"] if begun else []
    return lines + (["_files"] if values.paths else [])


def _for_fish(values: Values) -> list[str]:
    """Lines that print what may stand in place of the word at the cursor."""
    lines = ["set -l word (string replace -r '^--[^=]*=' '' -- (commandline -ct))"]
    if values.listed:
        lines += ["set -l before (string match -r '^.*,' -- $word; or echo)"]
        return [*lines, f"printf '%s\\n' $before{{{','.join(values.words)}}}"]
    lines += [f"printf '%s\\n' {shlex.join(values.words)}"]
    if values.paths:
        lines += ['__fish_complete_path "$word"']
    if values.paths_after:
        lines += [
            "set -l kind (string match -r '^[^:]*:' -- $word)",
            "set -l path (string replace -r '^[^:]*:' '' -- $word)",
            'test -n "$kind"; and printf \'%s\\n\' $kind(__fish_complete_path "$path")',
        ]
    return lines


# To Killick a word with a colon, or after an equals sign, is what it is; bash cuts it up.
_BASH_WORDS = """\
_killick_paths() {  # $1: what comes before the path, $2: the path so far
  compgen -f -- "$2" | while IFS= read -r path; do
    [[ -d ${path/#\\~\\//$HOME/} ]] && path+=/
    printf '%s\\n' "$1${path// /\\\\ }"
  done
}

_killick() {
  local line=${COMP_LINE:0:COMP_POINT}
  local -a COMP_WORDS
  read -ra COMP_WORDS <<<"$line"
  [[ $line == *[[:space:]] ]] && COMP_WORDS+=("")
  local last=${COMP_WORDS[-1]}
  if [[ $last == --*=* ]]; then
    COMP_WORDS[-1]=${last%%=*}
    COMP_WORDS+=("${last#*=}")
    last=${last#*=}
  fi
  local COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  ((COMP_CWORD > 0)) || return 0
  _shtab_killick
  local before=${last%"${last##*:}"}
  [[ $COMP_WORDBREAKS == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"$before"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:/] ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o bashdefault -o default -F _killick killick
"""
