"""The claims of Paper B: which are asked of which data set."""

from collections.abc import Callable, Iterator

from fedhet_app.analysis import paper_b
from fedhet_app.analysis.claims.base import NOT_MEASURED, Claim
from fedhet_app.analysis.claims.convergence import b10
from fedhet_app.analysis.claims.exact import b11, b12
from fedhet_app.analysis.claims.intensity import b7
from fedhet_app.analysis.claims.mixture import b5, b6, b8
from fedhet_app.analysis.claims.natural import b14
from fedhet_app.analysis.claims.personal import b1, b3, b4, b9
from fedhet_app.analysis.claims.routing import b2, b13
from fedhet_app.analysis.study import Section

Judge = Callable[[Section], list[Claim]]

ON_BENCHMARKS: tuple[Judge, ...] = (b1, b2, b3, b4, b5, b8, b9, b13)
ON_NATURAL: tuple[Judge, ...] = (b14,)
ON_ONE: tuple[Judge, ...] = (b6, b7, b10, b11, b12)
"""What the paper shows on one benchmark: asked of another only where it was measured."""
THE_ONE = "fashion-mnist"


def claims_b(section: Section) -> Iterator[Claim]:
    """Judge every claim that is about a section's data set, in no order."""
    natural = section.dataset in paper_b.NATURAL
    for judge in ON_NATURAL if natural else ON_BENCHMARKS:
        yield from judge(section)
    for judge in () if natural else ON_ONE:
        for claim in judge(section):
            if section.dataset == THE_ONE or not claim.verdict.startswith(NOT_MEASURED):
                yield claim
