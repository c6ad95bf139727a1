"""Where and how jobs run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from killick.errors import OptionError, check_least, check_option
from killick.experiments.jobs import Job


@dataclass(frozen=True)
class Execution:
    """Where and how jobs run.

    Attributes:
        jobs: How many run at once on this machine; by default one for each free core, or for each GPU.
        engine: "local"; "ray": on a Ray cluster, over a folder that all its machines share; or
            "here": one after another in this process.
        cpus: With Ray: cores for each job; by default 1.
        gpus: With Ray: GPUs for each job, also a share of one; by default 1 where there are some.
        address: With Ray: of the cluster; by default the one that is found, else this machine.
        device: "auto", "cpu", "cuda" or "cuda:1".
        part: `(i, n)` runs every n-th job, beginning with the i-th, as a task of a Slurm array does;
            the part that finishes last writes the report.
        command: Recorded, to repeat it.
        quiet: Show nothing.
    """

    jobs: int | None = None
    engine: str = "local"
    cpus: int | None = None
    gpus: float | None = None
    address: str | None = None
    device: str = "auto"
    part: tuple[int, int] | None = None
    command: Sequence[str] = ()
    quiet: bool = False

    def check(self, output: Path) -> None:
        """Refuse what cannot work before anything is written."""
        check_option("the engine", self.engine, ("local", "ray", "here"))
        for name in ("cpus", "gpus", "address"):
            if self.engine != "ray" and getattr(self, name) is not None:
                raise OptionError(f"--{name} requires --engine ray. Without it, use --jobs.")
        check_least("--jobs", self.jobs)
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            number, count = self.part
            raise OptionError(f"--part must be from 1/{count} to {count}/{count}, found {number}.")
        if output.exists() and not output.is_dir():
            raise OptionError(f"the output must be a folder, found a file at {output}.")

    def select(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs of this part: every N-th."""
        number, count = self.part or (1, 1)
        return list(jobs[number - 1 :: count])
