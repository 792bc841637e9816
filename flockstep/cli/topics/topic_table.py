"""What ``flockstep lda`` shows of topics: a table with each topic's size, coherence and top words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from flockstep.lda.words import top_of


def table(
    model: Any,
    words: list[str],
    *,
    title: str,
    count: int,
    sizes: Sequence[float],
    umass: Sequence[float | None] | None = None,
    npmi: Sequence[float | None] | None = None,
) -> Table:
    """One line per topic, the largest first."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    scores = {name: values for name, values in (("NPMI", npmi), ("UMass", umass)) if values is not None}
    for name in ("topic", "size", *scores):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("likeliest words", overflow="fold")
    top = top_of(model, words, count)
    for topic in sorted(range(len(top)), key=lambda k: -sizes[k]):
        numbers = ["-" if (value := values[topic]) is None else f"{value:.3f}" for values in scores.values()]
        # As text and not as markup: a word may hold brackets.
        listed = Text(", ".join(word for word, _ in top[topic]))
        drawn.add_row(str(topic), f"{sizes[topic]:.2%}", *numbers, listed)
    return drawn
