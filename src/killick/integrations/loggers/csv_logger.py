"""`metrics.csv`: what `metrics.jsonl` holds, for spreadsheets; written after each validation."""

import csv
import io

from killick.results.run_folder import read_metrics
from killick.runtime.atomic_files import write_atomic
from killick.training.loggers import LOGGERS, Logger, Values


class CsvLogger(Logger):
    """Writes a row for each line of `metrics.jsonl`; values that are lists are left out."""

    def log(self, kind: str, step: int, values: Values) -> None:
        """Write the table, once an epoch."""
        if kind == "validation":
            self.close()

    def close(self) -> None:
        """Write the table."""
        entries = [
            {name: value for name, value in entry.items() if not isinstance(value, list)}
            for entry in read_metrics(self.folder / "metrics.jsonl")
        ]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(dict.fromkeys(name for e in entries for name in e)))
        writer.writeheader()
        writer.writerows(entries)
        write_atomic(self.folder / "metrics.csv", text.getvalue())


LOGGERS.register("csv", CsvLogger)
