"""What a run adds up over its rounds, for ``summary.json`` and the checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any

from fedhet_app.config import Config

OPTIONAL = (
    "stale",
    "balanced-accuracy",
    "system-accuracy",
    "average-accuracy",
    "balanced-average-accuracy",
    "routing-accuracy",
    "vote-accuracy",
    "clipped",
)
"""What only some methods, or some runs, have in their summary."""


@dataclass
class Totals:
    """Sums, bests and last values; every field is JSON-ready."""

    upload_bytes: int = 0
    download_bytes: int = 0
    local_steps: int = 0
    rejected: int = 0
    empty_rounds: int = 0
    empty_streak: int = 0
    width_sum: float = 0.0
    rounds: int = 0
    best_accuracy: float = 0.0
    best_round: int = 0
    final_accuracy: float = 0.0
    final_loss: float | None = None
    balanced_accuracy: float | None = 0.0
    worst_client_accuracy: float = 0.0
    uncovered: float = 0.0
    never_trained: float = 0.0
    seconds_training: float = 0.0
    seconds_aggregation: float = 0.0
    seconds_evaluation: float = 0.0
    wall_seconds: float = 0.0
    stale: dict[str, float] | None = None
    system_accuracy: float | None = None
    average_accuracy: float | None = None
    balanced_average_accuracy: float | None = None
    routing_accuracy: float | None = None
    vote_accuracy: float | None = None
    clipped: int | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Take in one row of ``rounds.jsonl``."""
        self.rounds = row["round"]
        for name in ("upload_bytes", "download_bytes", "local_steps"):
            setattr(self, name, getattr(self, name) + row[name.replace("_", "-")])
        self.rejected += len(row["rejected"])
        if "clipped" in row:
            self.clipped = (self.clipped or 0) + len(row["clipped"])
        empty = row["train-loss"] is None
        self.empty_rounds += empty
        self.empty_streak = self.empty_streak + 1 if empty else 0
        self.width_sum += row["mean-width"]
        self.uncovered, self.never_trained = row["uncovered"], row["never-trained"]
        for phase in ("training", "aggregation", "evaluation"):
            seconds = row[f"seconds-{phase}"]
            setattr(self, f"seconds_{phase}", getattr(self, f"seconds_{phase}") + seconds)
        self.wall_seconds += row["seconds"]
        if "accuracy" in row:
            self.final_accuracy, self.final_loss = row["accuracy"], row["loss"]
            self.balanced_accuracy = row.get("balanced-accuracy")
            self.worst_client_accuracy = row["worst-client-accuracy"]
            self.stale = row.get("stale")
            self.system_accuracy = row.get("system-accuracy")
            self.average_accuracy = row.get("average-accuracy")
            self.balanced_average_accuracy = row.get("balanced-average-accuracy")
            self.routing_accuracy = row.get("routing-accuracy")
            self.vote_accuracy = row.get("vote-accuracy")
            if row["accuracy"] > self.best_accuracy:
                self.best_accuracy, self.best_round = row["accuracy"], row["round"]

    def summary(self, config: Config, status: str) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        sums = {key.replace("_", "-"): value for key, value in asdict(self).items()}
        mean_width = sums.pop("width-sum") / max(self.rounds, 1)
        del sums["empty-streak"]
        for name in OPTIONAL:
            if sums[name] is None:
                del sums[name]
        return {
            "strategy": config.strategy,
            "dataset": config.dataset,
            "model": config.model,
            "seed": config.seed,
            "status": status,
            "mean-width": mean_width,
            **sums,
        }
