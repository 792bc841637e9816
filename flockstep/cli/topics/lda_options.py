"""The options of ``flockstep lda``, each described once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option


class Objective(StrEnum):
    """What is learned."""

    vb = "vb"
    map = "map"
    cvb0 = "cvb0"


class Prior:
    """A number, or "auto": learned."""

    def __init__(self, text: str) -> None:
        try:
            self.value: float | str = "auto" if text == "auto" else float(text)
        except ValueError:
            raise BadParameter(f"{text!r} is neither a number nor auto") from None


def value_of(prior: Prior | None) -> float | str | None:
    """As an estimator takes it."""
    return None if prior is None else prior.value


_SOURCE = (
    "A folder of texts, a text file with a document per line, a table (CSV, TSV, JSON lines; all .gz too), a UCI "
    "bag-of-words file, or an npz of counts."
)

Source = Annotated[Path, Argument(metavar="SOURCE", help=_SOURCE, show_default=False)]
Model = Annotated[Path, Argument(metavar="MODEL", help="The folder that `lda fit` wrote.", show_default=False)]
Topics = Annotated[int, Option(help="How many topics.")]
Jobs = Annotated[int, Option(help="Threads that learn side by side without a lock; 1 is the same every time.")]
Nodes = Annotated[int, Option(help="Processes that learn from documents of their own, each with so many jobs.")]
Passes = Annotated[int, Option(help="How often every document is seen.")]
Batch = Annotated[
    int | None,
    Option(help="Documents per step.", show_default="256 to 1,024, as the words of documents and the topics ask for"),
]
Goal = Annotated[
    Objective,
    Option(help="cvb0: foresees best; map: nearly as well, and fastest; vb: variational Bayes, as usual."),
]
DocPrior = Annotated[
    Prior | None,
    Option(
        help="How many words of every topic a document has before it is read: a number, or auto: learned, for each "
        "topic (default: auto; vb: 1 / topics).",
        show_default=False,
        parser=Prior,
        metavar="NUMBER",
    ),
]
WordPrior = Annotated[
    Prior | None,
    Option(
        help="How often every word is in a topic before it is learned: a number, or auto: one number, learned "
        "(default: 1 / topics).",
        show_default=False,
        parser=Prior,
        metavar="NUMBER",
    ),
]
HeldOut = Annotated[float, Option(help="Share of documents to score with and not to learn from.")]
ManyTopics = Annotated[str, Option("--topics", help="The numbers of topics to try, with commas between.")]
Resume = Annotated[
    bool,
    Option(
        "--resume",
        help="Go on with the model in --out, up to --passes in all; its own topics, words and settings stay.",
    ),
]
Seeds = Annotated[
    Path | None,
    Option(help="A file with a line for each of the first topics: words that it is to be about.", show_default=False),
]
ScanOut = Annotated[Path, Option(help="Folder for scan.csv and scan.png.", show_default=False)]
Seed = Annotated[int, Option(help="One seed and one job, one outcome.")]
Out = Annotated[Path, Option(help="Folder for the model, topics.csv and topics.html.", show_default=False)]
Vocab = Annotated[
    Path | None,
    Option(help="The words of a bag-of-words file or npz, one a line; looked for beside it.", show_default=False),
]
Pattern = Annotated[str, Option(help="Which files of a folder are documents.")]
Encoding = Annotated[str, Option(help="How texts are encoded.")]
Column = Annotated[str | None, Option(help="The column of a table that has the texts.", show_default=False)]
By = Annotated[
    str | None,
    Option(help="A column of a table to tell topics by: a year, a source; a picture on the page.", show_default=False),
]
NGrams = Annotated[int, Option(help="Count up to so many words in a row as one, too: 2 finds 'new york'.")]
MinDf = Annotated[float, Option(help="Leave out words in fewer documents; below 1 it is a share.")]
MaxDf = Annotated[float, Option(help="Leave out words in more documents; up to 1 it is a share.")]
MostWords = Annotated[int, Option(help="Keep so many words at most, the most frequent.")]
StopWords = Annotated[
    str | None, Option(help="'english', or a file with a word per line, to leave out.", show_default=False)
]
TopWords = Annotated[int, Option(help="Words to show per topic.")]
Table = Annotated[Path, Option(help="The CSV file to write: a line per document.", show_default=False)]
