"""Run directories from numbers that a test chooses."""

import json

from fedhet_app.config import DEFAULTS


def write_run(
    directory,
    *,
    strategy="has-fl",
    dataset="cifar10",
    seed=42,
    accuracies=(0.5, 0.8, 0.7),
    losses=None,
    width=0.5,
    upload=100,
    status="completed",
    clients=(),
    tv=None,
    cost=None,
    extra=None,
    **options,
):
    """A run with one evaluated round for each accuracy, in each of which two clients upload."""
    directory.mkdir(parents=True)
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    run = {"strategy": strategy, "dataset": dataset, "seed": seed}
    config = {**DEFAULTS, **run, **keys, "results-dir": str(directory)}
    (directory / "config.json").write_text(json.dumps({"config": config}))
    losses = losses or [1.0] * len(accuracies)
    rounds = [
        {"round": number, "accuracy": accuracy, "loss": loss, "allocated-mean-width": width}
        | {"replies": 2, "upload-bytes": 2 * upload}
        for number, (accuracy, loss) in enumerate(zip(accuracies, losses, strict=True), start=1)
    ]
    write_rows(directory / "rounds.jsonl", rounds)
    write_rows(directory / "clients.jsonl", clients)
    if tv is not None:
        (directory / "partition.json").write_text(json.dumps({"total-variation": list(tv)}))
    if cost is not None:
        (directory / "cost.json").write_text(json.dumps(cost))
    if status:
        summary = {
            "status": status,
            "best-accuracy": max(accuracies, default=0.0),
            "final-accuracy": accuracies[-1] if accuracies else 0.0,
            "final-loss": losses[-1] if losses else None,
            "mean-width": width,
            "upload-bytes": 2 * upload * len(rounds),
            "download-bytes": 2 * upload * len(rounds),
            "rounds": len(rounds),
            "never-trained": 0.0,
        }
        (directory / "summary.json").write_text(json.dumps(summary | (extra or {})))
    return directory


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_suite(folder, name, entries):
    """A sweep's manifest: (label, seed) pairs, whose directories need not be there."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [
        {"label": label, "seed": seed, "directory": f"{label}/seed{seed}", "config": {}}
        for label, seed in entries
    ]
    (folder / "suite.json").write_text(json.dumps({"name": name, "runs": runs}))


def adaptation(server_round, **columns):
    """A row per client after an adaptation: columns hold a value for each."""
    names = {name.replace("_", "-"): values for name, values in columns.items()}
    clients = len(next(iter(names.values())))
    return [
        {"round": server_round, "partition": i, "trained": True}
        | {name: values[i] for name, values in names.items()}
        for i in range(clients)
    ]


COST = [
    {"width": 0.5, "params": 26, "macs": 250, "bytes": 104},
    {"width": 1.0, "params": 104, "macs": 1000, "bytes": 416},
]
