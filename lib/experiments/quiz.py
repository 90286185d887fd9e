"""Two questions on each of the first notebook's sections, asked before and after it, each with an answer it teaches."""

from dataclasses import dataclass

from lib.experiments.guesses import Question

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Item:
    """A question with its choices.

    `right` is the choice that holds, `why` says so in a sentence; `section` is the name of the section's experiment.
    """

    section: str
    text: str
    choices: tuple[str, ...]
    right: str
    why: str

    def asked(self, when: str) -> Question:
        """The question as it is counted: `BEFORE` and `AFTER` the section apart."""
        return Question(self.section, when, self.choices, (self.text,))


QUIZ = (
    Item(
        "learning-rate",
        "Everything else stays the same, and the learning rate grows. What happens?",
        (
            "The network learns ever faster.",
            "It learns faster, up to a point; beyond it, worse or not at all.",
            "It ends equally accurate, only sooner.",
        ),
        "It learns faster, up to a point; beyond it, worse or not at all.",
        "The gradient says which way is down only near where it was computed: a step that is too long lands higher up.",
    ),
    Item(
        "learning-rate",
        "You double the learning rate. How long does an epoch take?",
        ("Half as long.", "As long as before.", "Twice as long."),
        "As long as before.",
        "The rate is one factor in a step: the steps are as many as before, and each has the same arithmetic.",
    ),
    Item(
        "batch-size",
        "A batch holds ten times as many images. How long does an epoch take?",
        ("A tenth of the time.", "Less time, but more than a tenth.", "The same time: the images are the same."),
        "Less time, but more than a tenth.",
        "A tenth of the steps pay a tenth of the overhead, but the arithmetic on 48,000 images remains.",
    ),
    Item(
        "batch-size",
        "A batch holds ten times as many images, at the same learning rate. How much is learnt in an epoch?",
        ("Just as much: the images are the same.", "More: each step knows more images.", "Usually less."),
        "Usually less.",
        "The weights move once a batch: a tenth of the steps, each about as long as before, get less far.",
    ),
    Item(
        "depth",
        "A network gets another hidden layer. Will it be more accurate?",
        ("Always: it can express more.", "Not always, but every step costs more arithmetic.", "Never."),
        "Not always, but every step costs more arithmetic.",
        "What it could express it still has to learn, in the same few epochs; the further products are always paid.",
    ),
    Item(
        "depth",
        "Two networks, trained once each, end at 97.1 % and 97.3 %. Which is better?",
        ("The second one.", "The smaller one.", "That cannot be told."),
        "That cannot be told.",
        "Other initial weights and another order of images move the result by as much: train with several seeds.",
    ),
    Item(
        "backend",
        "A GPU does 1,000 times as many operations a second as your processor. How fast does it train this network?",
        ("1,000 times as fast.", "At least 10 times as fast.", "It may even be slower."),
        "It may even be slower.",
        "A step of a small network is little arithmetic and much launching, and launching does not get faster.",
    ),
    Item(
        "backend",
        "All libraries here make the same steps on the same batches. Why do their seconds differ most?",
        (
            "Some compute less precisely.",
            "By what happens between the products of matrices.",
            "Some see fewer images.",
        ),
        "By what happens between the products of matrices.",
        "They multiply about equally fast; how often Python is asked what comes next, and at what cost, is their own.",
    ),
    Item(
        "random-search",
        "You may train 64 settings of learning rate, batch size, width and depth. How do you choose them?",
        ("As a grid: a few values of each.", "At random.", "One at a time: the others stay as they are."),
        "At random.",
        "A grid tries only a few values of each, again and again; at random, 64 values of whichever matters are tried.",
    ),
    Item(
        "random-search",
        "Of 64 settings one is best on the validation images. How good is it on images that nobody has looked at?",
        ("Just as good.", "Usually a little worse.", "Usually a little better."),
        "Usually a little worse.",
        "The best of many was lucky, too: these images chose it, and others do not share its luck.",
    ),
    Item(
        "inside",
        "Of some images the network is 99 % sure. Is it right about all of them?",
        ("Yes: that is what sure means.", "No: some of its mistakes are as sure.", "That cannot be seen."),
        "No: some of its mistakes are as sure.",
        "The probabilities say how clearly one digit wins among ten, not how often the network is right.",
    ),
    Item(
        "inside",
        "You draw a letter. What does the network say?",
        ("Nothing: it knows digits only.", "Ten equal probabilities.", "Some digit, perhaps with confidence."),
        "Some digit, perhaps with confidence.",
        "Its ten probabilities always add up to one: what it was never shown becomes whichever digit is nearest.",
    ),
)


def items_of(section: str) -> tuple[Item, ...]:
    """The questions on a section, by the name of its experiment."""
    return tuple(item for item in QUIZ if item.section == section)
