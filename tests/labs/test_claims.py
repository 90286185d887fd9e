"""The table of claims: a heading an article, a verdict a row, and recorded cards where this machine has none."""

from lib.labs import claims as lab
from lib.sweeps.experiments.claims import CLAIMS, ClaimStatus, Judgement


def test_every_claim_stands_below_its_article_with_its_verdict():
    judged = [Judgement(status, "1 < 2", "because") for status, _ in zip(list(ClaimStatus) * 9, CLAIMS, strict=False)]
    text = lab.table(CLAIMS, judged)
    assert text.count('scope="row"') == len(CLAIMS)
    assert text.count('scope="colgroup"') == len({claim.source for claim in CLAIMS})
    assert all(status.value in text for status in ClaimStatus)
    assert "1 &lt; 2" in text


def test_one_and_many_claims_are_counted_in_their_own_words():
    for status in ClaimStatus:
        one, two = (lab.sentence([Judgement(status, "", "")] * n) for n in (1, 2))
        assert one.startswith("Of 1 claims: 1 ")
        assert two.startswith("Of 2 claims: 2 ")
        assert one.partition("1 ")[2] != two.partition("2 ")[2]
