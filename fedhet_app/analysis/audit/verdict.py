"""What the correlations of an audit support, in sentences.

A sentence that claims something needs the whole pooled interval on one side of 0.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhet_app.analysis.audit.control import Comparison
from fedhet_app.analysis.correlation import Correlation

SMALL = 0.3
"""A sample that cannot tell a correlation of this size from 0 is called small."""
FEW_ADAPTATIONS = 10
_DECISIVE = "estimate-tv-given-capacity"


def verdicts(
    pools: Mapping[str, Correlation], controls: Sequence[Comparison], column: str
) -> tuple[str, ...]:
    """Return what the evidence says of skew, capacity, widths and each control, in this order.

    Args:
        pools: Pooled correlations by the keys of ``measures.LABELS``.
        controls: Comparisons of final accuracy.
        column: The estimate's name.
    """
    capacity, width = pools["estimate-capacity"], pools["width-tv-given-capacity"]
    return (
        _on_skew(pools, column),
        _sentence(
            capacity,
            f"r({column}, capacity)",
            f"{column} tracks capacity",
            f"{column} tracks capacity",
        ),
        _sentence(
            width,
            "r(width, TV | capacity)",
            "widths follow data skew beyond capacity",
            "widths run against data skew: less skew gets more width at given capacity",
            "widths follow data skew beyond capacity",
        ),
        *map(_on_control, controls),
    )


def cautions(
    pools: Mapping[str, Correlation],
    adaptations: Sequence[int],
    notes: Sequence[str],
    unfinished: int,
    repeated: Sequence[Path],
) -> tuple[str, ...]:
    """Return what weakens the evidence.

    Args:
        pools: Pooled correlations by the keys of ``measures.LABELS``.
        adaptations: Adaptation rounds of each run.
        notes: On the values of single runs.
        unfinished: How many of the runs have not finished.
        repeated: Runs left out because they copy another.
    """
    found = []
    decisive = pools[_DECISIVE]
    if decisive.smallest > SMALL:
        found.append(f"small sample: {power(decisive)}")
    chance = pools["tv-capacity"]
    if chance.sign:
        found.append(
            f"capacity and skew go together in these runs, r(TV, capacity) = {as_text(chance)}: "
            "an estimate of one correlates with the other"
        )
    fewest = min(adaptations)
    if 0 < fewest < FEW_ADAPTATIONS:
        found.append(f"only {counted(fewest, 'adaptation round')}: estimates are still settling")
    found += notes
    if unfinished:
        found.append(f"{unfinished} of {counted(len(adaptations), 'run')} not finished")
    found += [f"left out, a copy by options and seed: {path}" for path in repeated]
    return tuple(found)


def power(correlation: Correlation) -> str:
    """Return what a sample of this size can tell from 0."""
    return (
        f"{counted(correlation.n, 'client')} in {counted(correlation.parts, 'run')}; only a "
        f"correlation beyond {correlation.smallest:.2f} in size can be told from 0"
    )


def as_text(correlation: Correlation) -> str:
    """Return a correlation with its interval, or why it is undefined."""
    if correlation.reason:
        return f"undefined: {correlation.reason}"
    return f"{correlation.r:.2f} [{correlation.low:.2f}, {correlation.high:.2f}]"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _on_skew(pools: Mapping[str, Correlation], column: str) -> str:
    decisive, raw = pools[_DECISIVE], pools["estimate-tv"]
    sentence = _sentence(
        decisive,
        f"r({column}, TV | capacity)",
        f"{column} carries information about data skew beyond capacity",
        f"{column} is negative: beyond capacity it falls as data skew rises",
        f"{column} carries information about data skew beyond capacity",
    )
    if decisive.reason and not raw.reason:
        sentence += f" (with nothing held fixed, r({column}, TV) = {as_text(raw)})"
    return sentence


def _sentence(
    correlation: Correlation, symbol: str, above: str, below: str, claim: str = ""
) -> str:
    """Say which of both claims the interval supports, or that there is no evidence of one."""
    if correlation.reason:
        return f"no verdict: {symbol} is {as_text(correlation)}"
    said = {1: above, -1: below, 0: f"no evidence that {claim or above}"}[correlation.sign]
    held = "" if correlation.sign else ", an interval that holds 0"
    return f"{said}: {symbol} = {as_text(correlation)}{held}"


def _on_control(comparison: Comparison) -> str:
    accuracy, seeds = comparison.accuracy, counted(len(comparison.seeds), "seed")
    size = f"{100 * accuracy.mean:+.1f} points"
    if accuracy.reason:
        said = f"no verdict on final accuracy against {comparison.control}: {size} on {seeds}"
    else:
        sign = int(accuracy.low > 0) - int(accuracy.high < 0)
        claim = {1: "is above", -1: "is below", 0: "cannot be told from"}[sign]
        size = f"{size} [{100 * accuracy.low:+.1f}, {100 * accuracy.high:+.1f}] over {seeds}"
        said = f"final accuracy {claim} that of {comparison.control}: {size}"
    if comparison.matched:
        return said
    gap = f"{comparison.width_gap:+.3f}"
    return f"{said}; the budgets do not match (mean width {gap}), so widths alone may explain it"
