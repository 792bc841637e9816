"""The state of a run as a table, where no browser is at hand."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flockstep.live.state import AWAITED, DONE, FAILED, GONE, HERE, SILENT
from flockstep.timeline import KINDS

_STYLES = {HERE: "green", GONE: "bold red", FAILED: "bold red", SILENT: "yellow", AWAITED: "yellow", DONE: "blue"}
_UNITS = ("B", "kB", "MB", "GB", "TB")
_EVENTS = 5


def view(state: dict[str, Any], folder: str) -> RenderableType:
    """Nodes, what is to be said of some, and the last of those that came and went."""
    if not state["nodes"]:
        return Text(f"Waiting for a run: no node has written to {folder} yet.")
    how = "ended after" if state["ended"] else "running for"
    apart = "" if state["spread"] is None else f", spread {state['spread']:.3g}"
    title = Text(f"{state['strategy']}, {how} {state['seconds']:.0f} s{apart}")
    # Narrow enough for 80 columns.
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("node", "state", "steps", "steps/s", "loss", "compute/wait/talk", "sent", "last to"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for node in state["nodes"]:
        table.add_row(*_cells(node))
    notes = [f"Node {node['rank']} {node['state']}: {node['why']}." for node in state["nodes"] if _is_news(node)]
    notes += [f"Attention: {state['drift']}."] if state["drift"] else []
    last = [f"{event['at']:8.1f} s  node {event['rank']} {event['what']}" for event in state["events"][:_EVENTS]]
    return Group(table, *(Text(line) for line in [*notes, *last, *_taking_part(state)]))


def _taking_part(state: dict[str, Any]) -> list[str]:
    """In an elastic run who takes part, and the last changes of that."""
    if state["view"] is None:
        return []
    when = "Took part last" if state["ended"] else "Taking part"
    who = f"{when}: {state['view']['who']} ({len(state['view']['members'])} of {len(state['nodes'])} nodes)."
    return [who, *(_change(change) for change in state["view"]["changes"][:_EVENTS])]


def _change(change: dict[str, Any]) -> str:
    now = f"{len(change['members'])} take part (waited {change['waited']:.1f} s)"
    return f"{change['at']:8.1f} s  {change['what']}; {now}"


def _is_news(node: dict[str, Any]) -> bool:
    return bool(node["why"]) and node["state"] not in (DONE, AWAITED)


def _cells(node: dict[str, Any]) -> list[RenderableType]:
    state = Text(node["state"].upper() if node["state"] in (GONE, FAILED) else node["state"], _STYLES[node["state"]])
    name = str(node["rank"]) + (f" (life {node['incarnation'] + 1})" if node["incarnation"] else "")
    if node["state"] == AWAITED:
        return [name, state]
    return [
        name,
        state,
        str(node["steps"]),
        f"{node['rate']:.3g}",
        "" if node["loss"] is None else f"{node['loss']:.3g}",
        "/".join(f"{100 * node['share'][kind]:.0f}" for kind in KINDS) + " %",
        _bytes(node["sent"]),
        "" if node["last_to"] is None else str(node["last_to"]),
    ]


def _bytes(count: float) -> str:
    place = 0
    while count >= 1000 and place < len(_UNITS) - 1:
        count, place = count / 1000, place + 1
    return f"{count:.3g} {_UNITS[place]}" if place else f"{count:.0f} B"
