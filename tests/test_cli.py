"""The command line: help, lists, exit codes, and how it refuses mistakes."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml
from runs import small

import killick
from killick.cli import COMMANDS, FIRST_STEPS, listing, main, make_parser, parse
from killick.cli.completion import SHELLS
from killick.cli.train import parse_overrides
from killick.errors import OptionError
from killick.results.rows import read_rows
from killick.training import load_recipe, make_recipe, to_yaml, train
from killick.training.recipe_files import settings

HEAVY = {"torch", "torchvision", "numpy", "timm", "sklearn", "matplotlib", "ray", "rich"}


def help_of(name: str) -> str:
    parser, commands = make_parser()
    return (commands.choices[name] if name else parser).format_help()


def examples_of(text: str) -> list[list[str]]:
    """The commands below `examples:`, without `killick` and the remarks beside them."""
    block = re.search(r"^examples:\n((?:  .+\n?)+)", text, re.MULTILINE).group(1)
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        command = re.split(r"\s{2,}", re.sub(r"\s+(?=--)", " ", line.strip()))[0]
        words = shlex.split(command.split(" > ")[0].replace("$SLURM_ARRAY_TASK_ID", "1"))
        found.append(words[words.index("killick") + 1 :])
    return found


def test_help_and_completion_import_no_torch_and_no_study_and_read_no_recipe():
    code = f"""
import sys, yaml
from killick.cli import COMMANDS, main
def refuse(*given, **more):
    raise AssertionError("a recipe was read")
yaml.safe_load = yaml.load = refuse
for words in [[], ["--help"], ["--version"], ["completion", "bash"], ["trian"],
              *([name, "--help"] for name in COMMANDS)]:
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


def test_killick_alone_names_first_steps_and_all_commands(capsys):
    assert main([]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    names = re.findall(r"^  (\w+)", told.split("Commands:")[1], re.MULTILINE)
    assert names == list(COMMANDS)
    for step in FIRST_STEPS:
        known, rest = parse(shlex.split(step)[1:])
        assert rest == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_every_example_is_understood(name):
    _, commands = make_parser()
    for action in commands.choices[name]._actions:
        assert action.help, f"killick {name} {action.option_strings or action.dest}"
    text = help_of(name)
    assert "%%" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(f"usage: killick {name}")
    for words in examples_of(text):
        if "--help" in words:
            continue
        known, rest = parse(words)
        assert known.command == name
        load_recipe("shapes-small", parse_overrides(rest))


def test_the_help_of_train_names_every_setting():
    text = help_of("train")
    for name in settings():
        assert name in text, name


def test_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"killick {killick.__version__}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_printed_and_the_shell_reads_it(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trian"], "trian (did you mean train?). See killick --help."),
        (["eval"], "eval (did you mean evaluate?)"),
        (["frobnicate"], "frobnicate. See killick --help."),
        (["--plugin", "mine"], "no installed package 'mine' extends Killick"),
        (["--hlep"], "--hlep (did you mean --help?)"),
        (["evaluate", "runs/x", "--limt", "5"], "--limt (did you mean --limit?)"),
        (["evaluate", "x", "--limt=5"], "--limt (did you mean --limit?)"),
        (["evaluate"], "MODEL. See killick evaluate --help."),
        (["evaluate", "x", "--limit", "few"], "--limit: invalid int value: 'few'"),
        (["evaluate", "x", "--limit"], "--limit"),
        (["evaluate", "x", "--ood", "y"], "--ood: takes NAME=DATA, not 'y'"),
        (["evaluate", "x", "--ood", "y=a", "--ood", "y=b"], "--ood: 'y' is given twice"),
        (["compare", "--shift", "y=a", "--shift", "y=b"], "--shift: 'y' is given twice"),
        (["evaluate", "x", "--severities", "a"], "--severities: takes whole numbers"),
        (["corrupt", "--table", "cifr"], "--table: 'cifr' is not one of cifar, tiny, imagenet"),
        (["list", "spaceships"], "KIND: 'spaceships' is not one of"),
        (["list", "data", "more"], "'more'. See killick list --help."),
        (["train", "--devcie", "cpu"], "--devcie (did you mean --device?)"),
        (["train", "--epochz", "3"], "epochz"),
        (["train", "--print-recip"], "--print-recip (did you mean --print-recipe?)"),
        (["train", "--lr"], "--lr needs a value"),
        (["train", "--dry-run"], "--dry-run. See killick train --help"),
        (["train", "epochs", "3"], "'epochs'"),
        (["train", "--epochs.foo", "3", "--print-recipe"], "epochs.foo"),
        (["train", "--recipe", "cifar"], "cifar10-resnet18"),
        (["train", "--data", "shape"], "did you mean"),
        (["train", "--network", "resnet18"], "resnet18"),
        (["train", "--network", "timm:resnet1"], "did you mean"),
        (["train", "--device", "gpu7"], "gpu7"),
        (["train", "--data", "imagefolder:/nowhere"], "/nowhere"),
        (["train", "--resume", "/nowhere"], "/nowhere"),
        (["train", "--resume", "x", "--epochs", "3"], "takes no --epochs"),
        (["train", "--from", "/nowhere.pt"], "/nowhere.pt"),
        (["train", "--recipe", "finetune"], "requires --from"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("killick: ")
    assert err.count("\n") == 1
    assert told in err


def test_the_resolved_recipe_can_be_printed(capsys):
    words = ["--recipe", "cifar10-resnet18", "--epochs", "60", "--lr=0.05", "--protocol"]
    assert main(["train", *words, "standard", "--data", "pack:x.npz", "--print-recipe"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["epochs"] == 60
    assert 0.05 in (group.get("lr") for group in values.values() if isinstance(group, dict))
    assert values["protocol"]["name"] == "standard"
    assert values["data"]["name"] == "pack:x.npz"
    assert values["schedule"]["milestones"] == [0.3, 0.6, 0.8]


def test_the_recipe_of_a_run_to_resume_is_printed_and_nothing_is_trained(tmp_path, capsys):
    text = to_yaml(make_recipe({"protocol": "standard", "epochs": 7}))
    (tmp_path / "recipe.yaml").write_text(text)
    assert main(["train", "--resume", str(tmp_path), "--print-recipe"]) == 0
    assert capsys.readouterr().out == text
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    assert main(["train", "--resume", str(tmp_path / "none"), "--print-recipe"]) == 2
    assert "none" in capsys.readouterr().err


def test_settings_have_short_names_and_yaml_values():
    words = ["--target", "uniform", "--data.mean", "[1, 2, 3]", "--x=-1", "--data.limit", "null"]
    assert parse_overrides([*words, "--checkpoint-minutes", "0"]) == {
        "protocol.target": "uniform",
        "data.mean": [1, 2, 3],
        "x": -1,
        "data.limit": None,
        "checkpoint_minutes": 0,
    }
    found = parse_overrides(["--data", "imagefolder:/a b #2: c", "--data.root", "none"])
    assert found == {"data.name": "imagefolder:/a b #2: c", "data.root": None}
    with pytest.raises(OptionError, match="--b"):
        parse_overrides(["--a", "1", "--b"])


def test_a_plugin_is_enabled_before_the_words_are_parsed(monkeypatch):
    enabled = []
    monkeypatch.setattr("killick.cli.enable_plugin", enabled.append)
    known, rest = parse(["train", "--plugin", "mine", "--epochs", "3", "--plugin=other"])
    assert rest == ["--epochs", "3"]
    assert enabled == ["mine", "other"]


def test_piped_output_is_plain_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KILLICK_CACHE", str(tmp_path / "cache"))
    words = ["--data", "digits", "--data.limit", "64", "--data.validation", "32", "--epochs", "2"]
    assert main(["train", *words, "--output", str(tmp_path / "run"), "--batch", "32"]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "step 4/4 epoch 2/2 loss " in told


def test_a_run_folder_is_named_by_recipe_data_and_protocol(
    tmp_path, monkeypatch, capsys, image_folder
):
    monkeypatch.chdir(tmp_path)
    words = ["--data", f"imagefolder:{image_folder}", "--data.size", "16", "--epochs", "1"]
    assert main(["train", *words, "--quiet"]) == 0  # neither limit nor validation of shapes' own
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("small-shapes-images")
    assert run.name.endswith("-masked-label-seed0")
    assert main(["train", *words, "--quiet"]) == 2
    assert run.name in capsys.readouterr().err


def test_settings_have_the_names_that_other_trainers_use():
    words = ["--model", "timm:resnet18", "--batch-size", "64", "--wd", "1e-4", "--data.download"]
    assert parse_overrides([*words, "--optimizer.nesterov", "--epochs", "3"]) == {
        "network.name": "timm:resnet18",
        "batch": 64,
        "optimizer.weight_decay": "1e-4",
        "data.download": True,
        "optimizer.nesterov": True,
        "epochs": 3,
    }
    recipe = load_recipe("shapes-small", parse_overrides([*words, "--data", "cifar10"]))
    assert (recipe.network.name, recipe.batch) == ("timm:resnet18", 64)
    assert recipe.optimizer.weight_decay == 1e-4
    assert recipe.data.download is True


def test_references_is_a_number_in_every_command():
    _, commands = make_parser()
    for name, command in commands.choices.items():
        command.fill()
        for action in command._actions:
            if "--references" in action.option_strings:
                assert action.type is int, name
            if "--reference-kind" in action.option_strings:
                assert "mean" in action.choices, name


@pytest.mark.parametrize("given", [[], ["--data", "shapes"], ["--quiet"]])
def test_train_alone_says_what_it_does_and_how_to_name_data(tmp_path, monkeypatch, capsys, given):
    monkeypatch.setattr("killick.training.loop.train", lambda *a, **b: SimpleNamespace(finished=1))
    monkeypatch.chdir(tmp_path)
    assert main(["train", *given]) == 0
    told = capsys.readouterr().out
    assert ("--data imagefolder:" in told) == (given == [])
    assert ("small-shapes" in told) == (given == [])


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "x", "--suite", "nope"],
        ["evaluate", "x", "--severities", "7"],
        ["evaluate", "x", "--suite", "shift"],
        ["evaluate", "x", "--class-map", "gone.json"],
        ["evaluate", "x", "--mean", "0,0,0"],
        ["compare", "--suite", "nope"],
        ["compare", "--arm", "nope"],
        ["compare", "--epochs", "none"],
        ["compare", "--recipe", "nope"],
        ["train", "--epochs", "0"],
    ],
)
def test_options_are_checked_before_torch_is_imported(words):
    code = f"import sys, killick.cli; assert killick.cli.main({words!r}) == 2; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# Exit codes ---------------------------------------------------------------------------------------


def test_a_bug_has_exit_code_1_and_keeps_its_traceback():
    code = (
        "import sys; from killick.cli import listing, main; listing.run = lambda *a: 1 / 0;"
        "sys.exit(main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_command_has_exit_code_130(monkeypatch, capsys, sent):
    before = signal.getsignal(signal.SIGTERM)

    def wait(options, rest):
        os.kill(os.getpid(), sent)
        time.sleep(5)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(listing, "run", wait)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "killick: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(unbuffered):
    process = subprocess.Popen(
        [sys.executable, "-m", "killick", "completion", "zsh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    process.stdout.close()  # as `| true` does, before anything is written
    told = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 141
    assert told == ""


def test_a_pipe_that_breaks_elsewhere_is_a_bug(monkeypatch, tmp_path):
    def broken(options, rest):
        raise BrokenPipeError("between two processes")

    monkeypatch.setattr(listing, "run", broken)
    with open(tmp_path / "out", "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(BrokenPipeError, match="between"):
            main(["list"])


# Lists --------------------------------------------------------------------------------------------


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
    for kind, entries in found.items():
        assert f"{kind}:\n" in told
        for entry in entries:
            assert entry["about"], (kind, entry)
            assert re.search(rf"^  {re.escape(entry['name'])}( |$)", told, re.MULTILINE)


@pytest.mark.parametrize("kind", listing.SLOW)
def test_stored_lists_are_those_of_the_registries(kind, capsys):
    assert listed(kind, capsys) == listing.KINDS[kind](), "run: make listing"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["train", "--help"],
        ["list"],
        ["train", "--print-recipe"],
        ["compare", "--dry-run"],
        ["compare", "--dry-run", "--data", "FOLDER"],
        ["study", "alpha", "--dry-run"],
    ],
)
def test_commands_that_need_no_torch_do_not_import_it(words, image_folder):
    words = [str(image_folder) if word == "FOLDER" else word for word in words]
    code = f"import sys; from killick.cli import main; main({words}); assert 'torch' not in sys.modules"
    plain = {name: value for name, value in os.environ.items() if "KILLICK" not in name}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr


def test_lists_are_wrapped_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["list"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 70


def test_every_metric_that_an_evaluation_writes_is_listed(image_folder, tmp_path, capsys):
    train(small(image_folder, data__validation=4, epochs=1), tmp_path / "run", quiet=True)
    words = ["--suite", "all", "--shift", f"same=imagefolder:{image_folder}", "--corruptions"]
    words += ["fog,sparkles", "--severities", "1", "--synthetic", "noise", "--quiet"]
    assert main(["evaluate", str(tmp_path / "run"), *words]) == 0
    written = {row["metric"] for row in read_rows(tmp_path / "run")}
    assert written <= {entry["name"] for entry in listed("metrics", capsys)}
