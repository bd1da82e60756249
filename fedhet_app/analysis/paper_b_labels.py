"""Which of a study's labels are the rows of Paper B's Table 1, and which are for other tables."""

from collections.abc import Mapping

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.labels import settings
from fedhet_app.analysis.study import Section

Alphas = tuple[float, float]

_BRIDGE = "fedspm.bridge-every"


def lines(section: Section) -> dict[str, Mapping[Alphas, str]]:
    """Return labels that differ in nothing but alpha-inter and alpha-intra, by both alphas.

    Each line has two settings at least, and is called after its label at the paper's usual one, or
    after its first where it has none there.
    """
    found: dict[frozenset[tuple[str, object]], dict[Alphas, str]] = {}
    if section.dataset in paper_b.NATURAL:
        return {}
    for label in section.labels:
        config = section.of(label)[0].config
        rest = {key: value for key, value in settings(config).items() if key not in paper_b.ALPHAS}
        found.setdefault(frozenset(rest.items()), {})[paper_b.alphas_of(config)] = label
    return {
        own.get(paper_b.USUAL, next(iter(own.values()))): own
        for own in found.values()
        if len(own) > 1
    }


def elsewhere(section: Section) -> frozenset[str]:
    """Return the labels that Table 1 leaves to Table 2, and to the table of bridge errors."""
    others = {
        label
        for own in lines(section).values()
        for alphas, label in own.items()
        if paper_b.USUAL in own and alphas != paper_b.USUAL
    }
    return frozenset(others | _for_their_bridge(section))


def _for_their_bridge(section: Section) -> set[str]:
    """Return the labels that measure bridge errors, where another of their method does not."""
    configs = {label: settings(section.of(label)[0].config) for label in section.labels}
    measuring = {label for label, own in configs.items() if own.get(_BRIDGE)}
    plain = {own["strategy"] for label, own in configs.items() if label not in measuring}
    return {label for label in measuring if configs[label]["strategy"] in plain}


def by_row(section: Section) -> dict[str, str]:
    """Return the label of each row of Table 1 that was run; of several, the first in the study."""
    found: dict[str, str] = {}
    apart = elsewhere(section)
    for label in section.labels:
        row = paper_b.row_of(section.of(label)[0].config)
        if row and label not in apart:
            found.setdefault(row, label)
    return {row: found[row] for row in paper_b.METHODS if row in found}
