"""The claims of Papers A and B, every one judged on every data set it is about.

A claim that does not hold is shown as such, and one without its runs says which are missing.
"""

import re
from collections.abc import Callable, Iterator

from fedhet_app.analysis.claims.accuracy import a8, a9, a11, a11_across
from fedhet_app.analysis.claims.base import Claim
from fedhet_app.analysis.claims.bits import a5
from fedhet_app.analysis.claims.claims_b import claims_b
from fedhet_app.analysis.claims.cost import a12, a15
from fedhet_app.analysis.claims.course import a16, a17
from fedhet_app.analysis.claims.coverage import a6, a7, a18
from fedhet_app.analysis.claims.estimate import a1, a2, a3, a4
from fedhet_app.analysis.claims.scaffold import a10
from fedhet_app.analysis.claims.text import a14
from fedhet_app.analysis.claims.width import a13
from fedhet_app.analysis.study import Section, Study

Judge = Callable[[Section], list[Claim]]

EVERYWHERE: tuple[Judge, ...] = (a2, a3, a5, a8, a12, a13)
ON_IMAGES: tuple[Judge, ...] = (a1, a4, a6, a7, a9, a11, a15, a16, a17, a18)
ON_TEXT: tuple[Judge, ...] = (a14,)
TEXTS = ("shakespeare",)
"""Data sets of text: what the paper claims of images alone is not asked of them."""


def claims(study: Study) -> list[Claim]:
    """Judge every claim, by data set and number.

    Args:
        study: The runs, finished and left out.
    """
    return [
        claim
        for section in study.sections
        for claim in sorted(
            claims_b(section) if section.dual else _claims_a(section, study), key=_number
        )
    ]


def _claims_a(section: Section, study: Study) -> Iterator[Claim]:
    is_text = section.dataset in TEXTS
    for judge in (*EVERYWHERE, *(ON_TEXT if is_text else ON_IMAGES)):
        yield from judge(section)
    if not is_text:
        yield from a10(section, study.left_out)
        others = [each for each in study.sections if not each.dual and each.dataset not in TEXTS]
        yield from a11_across(section, others)


def _number(claim: Claim) -> tuple[int, str]:
    """Return where a claim stands: by its number, and by the letter of its part."""
    found = re.match(r"[AB](\d+)(?: \((\w)\))?", claim.id)
    return (int(found[1]), found[2] or "") if found else (0, "")
