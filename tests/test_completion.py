"""`killick completion`: real shells are asked what they would complete."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killick.cli import COMMANDS, WITH_SETTINGS, listing, main, make_parser
from killick.cli.completion import SHELLS, VALUES, make_script
from killick.cli.parser import inner_parsers
from killick.cli.train import SHORT
from killick.training.recipe_files import settings, shipped

ALL_SETTINGS = {f"--{each}" for each in [*settings(), *SHORT] if each != "about"}

# Asks as bash does when the tab key is pressed, once for each line.
ASK_BASH = """
source "$1"
while IFS= read -r COMP_LINE; do
  COMP_POINT=${#COMP_LINE}
  _killick
  (IFS='|'; printf '%s\\n' "${COMPREPLY[*]}")
done
"""
ASK_FISH = "source $argv[1]; while read -l line; complete -C $line; echo ---; end"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> Path:
    """The scripts, each where its shell reads it, beside some pictures and a recipe."""
    folder = tmp_path_factory.mktemp("shells")
    for shell in SHELLS:
        (folder / f"_killick.{shell}").write_text(make_script(shell))
    (folder / "functions").mkdir()
    shutil.copy(folder / "_killick.zsh", folder / "functions" / "_killick")
    (folder / "pictures of cats").mkdir()
    (folder / "photos").mkdir()
    (folder / "mine.yaml").touch()
    (folder / "plan.txt").touch()
    return folder


def ask_bash(scripts: Path, *lines: str) -> list[list[str]]:
    command = ["bash", "--norc", "-c", ASK_BASH, "bash", scripts / "_killick.bash"]
    done = subprocess.run(
        command,
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        cwd=scripts,
        timeout=60,
    )
    # Outside of a real completion there are no options to set; nothing else may go wrong.
    told = [line for line in done.stderr.splitlines() if "compopt" not in line]
    assert not told, done.stderr
    return [line.split("|") if line else [] for line in done.stdout.splitlines()]


def ask_fish(scripts: Path, *lines: str) -> list[list[str]]:
    command = ["fish", "--no-config", "-c", ASK_FISH, scripts / "_killick.fish"]
    done = subprocess.run(
        command,
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        cwd=scripts,
        timeout=60,
    )
    assert done.stderr == ""
    answers = done.stdout.split("---\n")[:-1]
    return [[line.split("\t")[0] for line in answer.splitlines()] for answer in answers]


ONE_ANSWER = {
    "killick tr": "train",
    "killick train --optimizer.l": "--optimizer.lr",
    "killick train --lr 0.1 --optimizer.weight_": "--optimizer.weight_decay",
    "killick train --recipe digits-": "digits-small",
    "killick train --recipe mine": "mine.yaml",
    "killick train --data dig": "digits",
    "killick train --data imagef": "imagefolder:",
    "killick compare --arm fine": "finetuned",
    "killick compare --baseline st": "standard",
    "killick compare --optimizer.weight_": "--optimizer.weight_decay",
    "killick evaluate x --baseline ale": "alexnet",
    "killick train --protocol m": "masked",
    "killick train --protocol.name m": "masked",
    "killick train --target u": "uniform",
    "killick train --augment.flip t": "true",
    "killick train --schedule.name co": None,  # cosine and constant
    "killick evaluate --suite cl": "clean",
    "killick evaluate --suite clean,cali": "clean,calibration",
    "killick evaluate --suite clean,ood,cali": "clean,ood,calibration",
    "killick evaluate x --corruptions fog,sn": "fog,snow",
    "killick evaluate x --table im": "imagenet",
    "killick corrupt --corruptions jp": "jpeg_compression",
    "killick report x --baseline anch": "anchored",
    "killick list corr": "corruptions",
    "killick list --js": "--json",
    "killick completion z": "zsh",
    "killick --ver": "--version",
}


@needs_bash
def test_bash_completes_what_is_known(scripts):
    found = ask_bash(scripts, *ONE_ANSWER)
    for (line, expected), answer in zip(ONE_ANSWER.items(), found, strict=True):
        if expected is not None:
            assert answer == [expected], line
    assert sorted(found[list(ONE_ANSWER).index("killick train --schedule.name co")]) == [
        "constant",
        "cosine",
    ]


@needs_fish
def test_fish_completes_what_is_known(scripts):
    found = ask_fish(scripts, *ONE_ANSWER)
    for (line, expected), answer in zip(ONE_ANSWER.items(), found, strict=True):
        if expected is not None:
            assert answer == [expected], line


@needs_bash
def test_bash_knows_every_command_option_setting_and_name(scripts):
    _, commands = make_parser()
    lines = ["killick ", *(f"killick {name} --" for name in COMMANDS)]
    found = ask_bash(scripts, *lines)
    assert found[0] == list(COMMANDS)
    for name, answer in zip(COMMANDS, found[1:], strict=True):
        expected = {o for o in commands.choices[name].options if o.startswith("--")}
        if name in WITH_SETTINGS and name != "study":
            expected |= ALL_SETTINGS
        assert set(answer) == expected, name
    studies = inner_parsers(commands.choices["study"])
    named, *found = ask_bash(scripts, "killick study ", *(f"killick study {n} --" for n in studies))
    assert named == list(studies)
    for (name, study), answer in zip(studies.items(), found, strict=True):
        expected = {option for option in study.options if option.startswith("--")}
        assert set(answer) == expected | ALL_SETTINGS, name
    recipes, suites, corruptions, data = ask_bash(
        scripts,
        "killick train --recipe ",
        "killick evaluate x --suite ",
        "killick evaluate x --corruptions ",
        "killick evaluate x --data ",
    )
    assert recipes[: len(shipped())] == list(shipped())
    assert suites == [*listing.SUITES, "all"]
    assert corruptions == list(listing.CORRUPTIONS)
    assert [name.rstrip(":") for name in data] == [n.partition(":")[0] for n in listing.DATA]


@needs_bash
def test_bash_completes_words_that_it_cuts_at_colons_and_equals_signs(scripts):
    found = ask_bash(
        scripts,
        "killick train --data imagefolder:pho",
        "killick train --data imagefolder:pict",
        "killick train --network killick:resnet_",
        "killick train --recipe=dig",
        "killick train --epochs=3 --protocol=an",
        "killick evaluate timm:resnet18 --sui",
    )
    assert found == [
        ["photos/"],
        [r"pictures\ of\ cats/"],
        ["resnet_small"],  # what is left of the colon stays as it is
        ["digits-small"],
        ["anchored"],
        ["--suite"],
    ]


@needs_bash
def test_bash_offers_folders_or_files_where_paths_are_expected(scripts):
    folders, files, weights, model, nothing, no_command = ask_bash(
        scripts,
        "killick train --output p",
        "killick corrupt mi",
        "killick evaluate x --checkpoint mi",
        "killick evaluate pho",
        "killick train --epochs p",
        "killick",
    )
    assert sorted(folders) == ["photos", "pictures of cats"]
    assert files == ["mine.yaml"]
    assert weights == ["mine.yaml"]
    assert model == ["photos/"]
    assert nothing == []
    assert no_command == []


@needs_fish
def test_fish_completes_paths_behind_a_kind_of_data(scripts):
    found = ask_fish(
        scripts,
        "killick train --data imagefolder:pho",
        "killick train --network killick:resnet_",
        "killick train --recipe=digits-",
        "killick train --output ph",
    )
    assert found == [
        ["imagefolder:photos/"],
        ["killick:resnet_small"],
        ["--recipe=digits-small"],
        ["photos/"],
    ]


START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SET_UP = {
    "bash": 'source _killick.bash; killick() { echo "<$*>"; }',
    "zsh": 'fpath+=$PWD/functions; autoload -U compinit; compinit -u -D; killick() { echo "<$*>"; }',
    "fish": 'source _killick.fish; function killick; echo "<$argv>"; end',
}


def press_tab(shell: str, folder: Path, lines: list[str]) -> list[str]:
    """What a real shell at a terminal runs when tab is pressed at the end of each line."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.update(TERM="dumb", HOME=str(folder), PS1="$ ")
        os.execvp(START[shell][0], START[shell])

    def read(until: bytes, seconds: float) -> bytes:
        found, end = b"", time.monotonic() + seconds
        while until not in found and time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                found += os.read(terminal, 65536)
        return found

    try:
        os.write(terminal, f"{SET_UP[shell]}; echo set''up\n".encode())
        assert b"setup" in read(b"setup", 30)
        answers = []
        for line in lines:
            read(b"\0", 0.2)  # the prompt
            os.write(terminal, line.encode() + b"\t")
            time.sleep(0.4)  # a shell drops what follows a tab too soon
            os.write(terminal, b"\n")
            told = read(b">\r\n", 10).decode(errors="replace")
            answers.append(told.rpartition("<")[2].partition(">")[0])
        return answers
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_at_a_terminal_completes_when_tab_is_pressed(shell, scripts):
    if shutil.which(shell) is None:
        assert not os.environ.get("CI"), f"CI must have {shell}"
        pytest.skip(f"no {shell}")
    lines = [
        "killick tra",
        "killick train --optimizer.l",
        "killick train --recipe dig",
        "killick train --data imagefolder:pho",
        "killick train --network killick:resnet_",
        "killick evaluate x --suite clean,corr",
        "killick evaluate pho",
    ]
    answers = [answer.rstrip("/") for answer in press_tab(shell, scripts, lines)]
    assert answers == [
        "train",
        "train --optimizer.lr",
        "train --recipe digits-small",
        "train --data imagefolder:photos",
        "train --network killick:resnet_small",
        "evaluate x --suite clean,corruptions",
        "evaluate photos",
    ]


def test_every_completed_option_is_one_of_some_command():
    _, commands = make_parser()
    known = {option for parser in commands.choices.values() for option in parser.options}
    known |= {f"--{name}" for name in [*settings(), *SHORT]}
    known |= {a.metavar for parser in commands.choices.values() for a in parser._actions}
    assert set(VALUES) <= known


def test_help_says_where_the_script_goes(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["completion", "--help"])
    told = capsys.readouterr().out
    for shell in SHELLS:
        assert f"killick completion {shell} > ~/" in told
    assert "fpath" in told


def test_without_shtab_the_way_out_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
