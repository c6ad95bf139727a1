"""What the command line says of itself: help, first steps, examples, lists, and how it refuses."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from runs import small

import killick.cli
from killick.cli import COMMANDS, FIRST_STEPS, listing, main, make_parser, parse
from killick.cli.parser import inner_parsers
from killick.cli.train import parse_overrides
from killick.errors import OptionError
from killick.results.rows import read_rows
from killick.studies import NAMES
from killick.studies.study import SIZES
from killick.training import load_recipe, shipped, train

HEAVY = {"torch", "torchvision", "numpy", "timm", "sklearn", "matplotlib", "ray", "rich"}


def help_of(*words: str) -> str:
    parser, commands = make_parser()
    for number, word in enumerate(words):
        parser = (inner_parsers(parser) if number else commands.choices)[word]
    return parser.format_help()


def examples_of(text: str) -> list[list[str]]:
    """The commands below `examples:`, without `killick` and what is said of them."""
    block = re.search(r"^examples:\n((?:  .+\n?)+)", text, re.MULTILINE).group(1)
    lines = block.replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        command = re.split(r"\s{2,}", re.sub(r"\s+(?=--)", " ", line.strip()))[0]
        words = shlex.split(command.split(" > ")[0])
        found.append(words[words.index("killick") + 1 :])
    return found


def test_help_lists_and_completion_do_without_torch():
    code = f"""
import sys
from killick.cli import COMMANDS, main
for words in [
    [], ["--help"], ["--version"], ["list"], ["list", "--json"], ["completion", "bash"],
    ["train", "--print-recipe"], ["trian"], *([name, "--help"] for name in COMMANDS)
]:
    try:
        main(words)
    except SystemExit:
        pass
    heavy = {HEAVY!r} & set(sys.modules)
    assert not heavy, (words, heavy)
print("none of them")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("none of them\n")


def test_killick_alone_says_what_to_do_next_within_80_columns(capsys):
    assert main([]) == 0
    told, err = capsys.readouterr()
    assert err == ""
    assert max(map(len, told.splitlines())) <= 80
    commands = told.split("Commands:")[1].split("Help:")[0]
    names = re.findall(r"^  (\w+)", commands, re.MULTILINE)
    assert names == list(COMMANDS)
    for step in FIRST_STEPS:
        assert (step in told) == (step.split()[1] in COMMANDS), step
    assert "killick COMMAND --help" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_is_explained(name):
    _, commands = make_parser()
    for action in commands.choices[name]._actions:
        assert action.help, f"killick {name} {action.option_strings or action.dest}"
    text = help_of(name)
    assert "%%" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(f"usage: killick {name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_every_study_is_explained(name):
    _, commands = make_parser()
    for action in inner_parsers(commands.choices["study"])[name]._actions:
        assert action.help, f"killick study {name} {action.option_strings or action.dest}"
    text = help_of("study", name)
    assert "%%" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(f"usage: killick study {name}")
    for size in SIZES:
        assert f"\n  {size:6} recipe " in text


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_example_in_the_help_is_understood(name):
    examples = examples_of(help_of(*name.split()))
    assert examples
    for words in examples:
        if not words:
            continue  # `killick` alone
        if "--help" in words:
            with pytest.raises(SystemExit, match="0"):
                parse(words)
            continue
        known, rest = parse(words)
        assert name in ("", known.command), words
        overrides = parse_overrides(rest)
        load_recipe("shapes-small", overrides)


def test_the_first_steps_are_understood():
    for step in FIRST_STEPS:
        words = shlex.split(step)[1:]
        if words[0] in COMMANDS:
            known, rest = parse(words)
            assert known.command == words[0]
            assert rest == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trian"], "expected a command, found trian (did you mean train?). See killick --help."),
        (["eval"], "expected a command, found eval (did you mean evaluate?)"),
        (["e"], "expected a command, found e (did you mean evaluate?)"),
        (["frobnicate"], "expected a command, found frobnicate. See killick --help."),
        (["--hlep"], "expected an option of killick, found --hlep (did you mean --help?)"),
        (["-x"], "expected an option of killick, found -x. See"),
        (
            ["evaluate", "runs/x", "--limt", "5"],
            "expected an option of killick evaluate, found --limt (did you mean --limit?)."
            " See killick evaluate --help.",
        ),
        (["evaluate", "x", "--limt=5"], "found --limt (did you mean --limit?)"),
        (["evaluate"], "expected MODEL, found nothing. See killick evaluate --help."),
        (["evaluate", "x", "--limit", "few"], "--limit: expected a whole number, found 'few'."),
        (["evaluate", "x", "--accept", "all"], "--accept: expected a number, found 'all'."),
        (["evaluate", "x", "--limit"], "--limit: expected a value, found none."),
        (["evaluate", "x", "--ood", "y"], "--ood: expected NAME=DATA, found 'y'."),
        (["corrupt", "--table", "cifr"], "--table: expected cifar or imagenet, found 'cifr' (did"),
        (
            ["train", "--devcie", "cpu"],
            "expected an option of killick train, found --devcie (did you",
        ),
        (["train", "--quite"], "found --quite (did you mean --quiet?)"),
        (["list", "corruption"], "found 'corruption' (did you mean corruptions?)"),
        (["list", "spaceships"], "KIND: expected recipes, data, networks, "),
        (["list", "data", "more"], "expected nothing more, found 'more'. See killick list --help."),
        (
            ["completion", "bsh"],
            "SHELL: expected bash, zsh or fish, found 'bsh' (did you mean bash",
        ),
        (["completion"], "expected SHELL, found nothing."),
    ],
)
def test_what_is_not_understood_is_one_line_with_the_way_out(words, told, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("killick: ")
    assert err.count("\n") == 1
    assert told in err


def test_settings_of_a_recipe_are_no_slips_of_options():
    known, rest = parse(["train", "--checkpoint-minutes", "1", "--data.resize=32", "--lr", "-0.1"])
    assert parse_overrides(rest) == {
        "checkpoint_minutes": 1,
        "data.resize": 32,
        "optimizer.lr": -0.1,
    }
    with pytest.raises(OptionError, match=r"found --recipee \(did you mean --recipe\?\)"):
        parse(["train", "--epochs", "3", "--recipee=x"])


@pytest.mark.parametrize("code", [0, 1, 130])
def test_a_command_decides_the_exit_code(code, monkeypatch):
    monkeypatch.setattr(listing, "run", lambda options, rest: code)
    assert main(["list"]) == code


def test_an_interrupted_command_has_exit_code_130(monkeypatch, capsys):
    def interrupted(options, rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "run", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "killick: interrupted\n"


def test_a_bug_has_exit_code_1_and_keeps_its_traceback():
    code = (
        "import sys; from killick.cli import listing, main; listing.run = lambda *a: 1 / 0;"
        "sys.exit(main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_the_exit_codes_are_documented():
    codes = re.findall(r"^  (\d+) ", help_of().split("exit codes:")[1], re.MULTILINE)
    assert codes == ["0", "1", "2", "130"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["list"], ["train", "--help"], ["completion", "zsh"]])
def test_a_closed_pipe_is_no_error_to_be_told(words, unbuffered):
    command = [sys.executable, "-m", "killick", *words]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    process.stdout.close()  # as `| true` does, before anything is written
    told = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() in (0, 141)  # argparse itself hides the error when it prints help
    assert told == ""


def test_a_pipe_that_breaks_elsewhere_is_a_bug(monkeypatch, tmp_path):
    def broken(options, rest):
        raise BrokenPipeError("between two processes")

    monkeypatch.setattr(listing, "run", broken)
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError, match="between"):
            main(["list"])


def listed(kind: str, capsys) -> list[dict]:
    capsys.readouterr()
    assert main(["list", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [kind]
    return found[kind]


def test_every_kind_is_listed_for_people_and_for_programs(capsys):
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(listing.KINDS)
    assert re.findall(r"^(\w+):$", told, re.MULTILINE) == list(found)
    for kind, entries in found.items():
        assert main(["list", kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{kind}:"
        assert len(lines) == 1 + len(entries)  # whole lines, where nobody looks
        for entry, line in zip(entries, lines[1:], strict=True):
            assert entry["about"]
            assert line.startswith(f"  {entry['name']}  ")
            assert line.endswith(entry["about"])


def test_lists_are_wrapped_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 70
    assert len(lines) > 100


def test_the_lists_are_what_the_code_has(capsys):
    from killick.corruptions.corruption import CORRUPTIONS
    from killick.corruptions.suites import PUBLISHED, list_corruptions
    from killick.data.sources import PLAIN, WITH_PATH
    from killick.data.synthetic_ood import SYNTHETIC
    from killick.evaluation.plan import SUITES
    from killick.experiments.arms import KNOWN
    from killick.metrics import SCORES
    from killick.nets import OWN
    from killick.training.recipe_files import settings

    def names(kind: str) -> list[str]:
        return [entry["name"] for entry in listed(kind, capsys)]

    assert names("recipes") == list(shipped())
    assert tuple(names("suites")) == SUITES
    assert tuple(names("scores")) == SCORES.names()
    assert tuple(OWN) == listing.NETWORKS
    assert tuple(SYNTHETIC) == listing.SYNTHETIC
    kinds = [name.partition(":")[0] for name in names("data")]
    assert sorted(kinds) == sorted([*PLAIN, *WITH_PATH, "pictures"])
    assert names("corruptions") == list(PUBLISHED)
    for entry in listed("corruptions", capsys):
        about = CORRUPTIONS.find(entry["name"]).description
        assert entry["about"] == about.rstrip(".")
        for table in ("cifar", "imagenet"):
            lists = {k: entry["name"] in list_corruptions(k, table) for k in ("c15", "c", "cbar")}
            inside = lists["c"] or lists["cbar"]
            assert (table in entry["tables"]) == inside
            if inside:
                expected = "C" if lists["c15"] else "C, extra" if lists["c"] else "C-bar"
                assert entry["list"].split(", cifar")[0].split(", imagenet")[0] == expected
    for entry in listed("networks", capsys)[: len(OWN)]:
        make = OWN[entry["name"].removeprefix("killick:")]
        assert entry["about"] == make.__doc__.splitlines()[0].rstrip(".")
    assert set(names("protocols")) == set(KNOWN)
    fields = settings()
    told = " ".join(entry["about"] for entry in listed("protocols", capsys))
    assert set(re.findall(r"--protocol (\w+)", told)) == set(
        fields["protocol.name"].metadata["among"]
    )
    assert set(re.findall(r"--target (\w+)", told)) == set(
        fields["protocol.target"].metadata["among"]
    )


def test_every_metric_that_an_evaluation_writes_is_listed(pictures, tmp_path, capsys):
    train(small(pictures, data__validation=4, epochs=1), tmp_path / "run", quiet=True)
    words = ["--suite", "all", "--shift", f"same=imagefolder:{pictures}", "--corruptions"]
    words += ["fog,sparkles", "--severities", "1", "--synthetic", "noise", "--quiet"]
    assert main(["evaluate", str(tmp_path / "run"), *words]) == 0
    written = {row["metric"] for row in read_rows(tmp_path / "run")}
    known = {entry["name"] for entry in listed("metrics", capsys)}
    assert written <= known
    # Those need more classes, a baseline, or both right and wrong answers.
    assert known - written <= {"top5", "mce", "error_auroc"}


def test_the_suites_in_the_help_of_evaluate_are_those_listed():
    text = help_of("evaluate").split("\nsuites:\n")[1].split("\n\n")[0]
    assert re.findall(r"^  (\w+)", text, re.MULTILINE) == list(listing.SUITES)


def test_commands_stand_in_the_order_of_their_use():
    order = ["compare", "train", "evaluate", "report", "predict", "export", "publish"]
    order += ["study", "corrupt", "check", "list", "completion"]
    assert list(COMMANDS) == [name for name in order if name in COMMANDS]
    assert set(COMMANDS) <= set(order)
    assert isinstance(make_parser()[0], argparse.ArgumentParser)
    assert set(killick.cli.WITH_SETTINGS) <= set(order)
