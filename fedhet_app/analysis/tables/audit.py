"""The allocation audit inside a report: Paper A's Table 4, and every method's verdict."""

from collections.abc import Mapping
from pathlib import Path

from fedhet_app.analysis import paper_a
from fedhet_app.analysis.audit.audit import CONTROL, GroupAudit, audit
from fedhet_app.analysis.audit.measures import LABELS
from fedhet_app.analysis.labels import settings
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.cells import Cell, Column, Estimate, Table

_TABLE_4 = (
    "estimate-tv",
    "estimate-capacity",
    "estimate-tv-given-capacity",
    "width-tv-given-capacity",
    "tv-capacity",
)
_VERDICTS = ("estimate-tv-given-capacity", "estimate-capacity", "width-tv-given-capacity")
"""What the first verdicts of a group are on, in their order."""
_OF_THE_METHOD = [key for key in LABELS if key != "tv-capacity"]


def audit_labels(section: Section) -> dict[str, GroupAudit]:
    """Audit every label whose estimates or widths vary, on its own: labels may share settings.

    Raises:
        FedhetError: A file of a run cannot be read.
    """
    groups = {}
    for label in section.trained:
        directories = [run.directory for run in section.of(label)]
        (group,) = audit(directories, control=_controls(section, label)).groups
        if any(not group.pooled[key].reason for key in _OF_THE_METHOD):
            groups[label] = group
    return groups


def correlation_table(section: Section, groups: Mapping[str, GroupAudit]) -> Table | None:
    """Return Table 4 with r(TV, capacity) as its fifth column; ``None`` without a HAS-FL run."""
    group = groups.get("has-fl")
    if group is None:
        return None
    paper = paper_a.column(section.dataset)
    known = paper_a.CORRELATIONS.get(paper_a.source(section.dataset), {})
    parts = [(f"seed {run.seed}", run.correlations, known.get(run.seed, {})) for run in group.runs]
    rows = []
    for name, correlations, published in [*parts, ("pooled", group.pooled, {})]:
        cells: list[Cell] = []
        for key in _TABLE_4:
            own = Estimate.of(correlations[key])
            cells += [own, published.get(key)] if known else [own]
        rows.append((name, *cells))
    columns = [Column(name="Run")]
    for key in _TABLE_4:
        columns.append(Column(name=LABELS[key], form="+.2f"))
        if known:
            columns.append(Column(name=f"{LABELS[key]}, {paper}", form="+.2f"))
    note = "Final smoothed estimates of all clients; 95 % Fisher-z intervals, pooled by Fisher's z."
    if known:
        note += " The paper prints no r(TV, capacity): it is solved for from its other numbers."
    note += _undefined({"has-fl": group})
    title = "Table 4. Do the estimates follow the data or the capacity?"
    return Table(name="table-4", title=title, columns=tuple(columns), rows=tuple(rows), note=note)


def audit_table(groups: Mapping[str, GroupAudit]) -> Table | None:
    """Return the pooled correlations of every audited label; ``None`` where there is none."""
    rows: list[tuple[Cell, ...]] = [
        (label, len(group.runs), *(Estimate.of(group.pooled[key]) for key in LABELS))
        for label, group in groups.items()
    ]
    if not rows:
        return None
    columns = [
        Column(name="Label"),
        Column(name="n"),
        *(Column(name=name, form="+.2f") for name in LABELS.values()),
    ]
    note = "Pooled over n seeds; within tiers: Spearman's rank correlation in each, pooled."
    note += _undefined(groups)
    title = "Allocation audit"
    return Table(name="audit", title=title, columns=tuple(columns), rows=tuple(rows), note=note)


def verdicts(groups: Mapping[str, GroupAudit]) -> list[str]:
    """Return what the evidence supports, a sentence for each label and finding.

    Of a label without estimates there is nothing to say but of its widths.
    """
    found = []
    for label, group in groups.items():
        said = [
            sentence
            for key, sentence in zip(_VERDICTS, group.verdicts, strict=False)
            if not (group.pooled[key].reason and group.pooled["estimate-tv"].reason)
        ]
        said += group.verdicts[len(_VERDICTS) :]
        said += [f"caution: {caution}" for caution in group.cautions]
        found += [f"{label}: {sentence}" for sentence in said]
    return found


def _undefined(groups: Mapping[str, GroupAudit]) -> str:
    """Return a sentence for each reason for which correlations are undefined."""
    reasons: dict[str, dict[str, None]] = {}
    for label, group in groups.items():
        for correlation in group.pooled.values():
            if correlation.reason:
                reasons.setdefault(correlation.reason, {})[label] = None
    sentences = [f" Undefined for {', '.join(of)}: {reason}." for reason, of in reasons.items()]
    return "".join(sentences)


def _controls(section: Section, label: str) -> list[Path]:
    """Return the random-budget runs that share everything but the method with a label's."""
    task = _task(section, label)
    return [
        run.directory
        for other in section.labels
        for run in section.of(other)
        if other != label and run.config["strategy"] == CONTROL and _task(section, other) == task
    ]


def _task(section: Section, label: str) -> dict[str, object]:
    own = settings(section.of(label)[0].config)
    return {key: value for key, value in own.items() if "." not in key and key != "strategy"}
