"""From what a user said to a comparison: built-in defaults, then a plan file, then the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flockstep import check
from flockstep.compare import default_plan, user_code
from flockstep.compare.cluster import Cluster, real_cluster
from flockstep.compare.plan import Comparison, Entry
from flockstep.texts.optimizer_texts import OptimizerName

TOP = ("strategies", "workload", "steps", "seeds", "target", "lr", "rates", "optimizer", "real")
_TEXTS = ("workload", "link", "latency", "step_time")
_LISTS = ("straggler", "slowdown", "crash", "pause", "partition", "drop")
CLUSTER = ("nodes", "link", "latency", "step_time", "spread", *_LISTS)
ENTRY = ("strategy", "label", "lr", "optimizer")


def read_plan(path: Path) -> dict[str, Any]:
    """What a plan file says: the keys of ``[cluster]`` beside the others. An unknown key is an error."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    cluster = data.pop("cluster", {})
    if not isinstance(cluster, dict):
        raise TypeError(f"{path}: cluster is a table; write [cluster] and its keys below")
    _check_keys(path, "", data, (*TOP, "cluster"))
    _check_keys(path, "cluster.", cluster, CLUSTER)
    for entry in data.get("strategies", []):
        if isinstance(entry, dict):
            _check_keys(path, "strategies.", entry, ENTRY)
    said = {**data, **{name: [value] if _lone(name, value) else value for name, value in cluster.items()}}
    for name, value in said.items():
        if name in _TEXTS and not isinstance(value, str):
            raise TypeError(f"{path}: {name} is a text in quotes, got {value!r}")
        if name in _LISTS and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise TypeError(f"{path}: {name} is a list of texts in quotes, got {value!r}")
    return said


def _lone(name: str, value: Any) -> bool:
    return name in _LISTS and isinstance(value, str)


def _check_keys(path: Path, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            meant = f" (did you mean {where}{close[0]}?)" if close else ""
            raise ValueError(f"{path}: there is no key {where}{key}{meant}; there are {', '.join(known)}")


def comparison(settings: Mapping[str, Any], given: set[str], command: str) -> Comparison:
    """A comparison, checked; ``given`` are the settings that are not defaults."""
    settings = dict(settings)
    looped = user_code.is_place(settings["workload"]) and isinstance(
        user_code.load(settings["workload"]), user_code.Loop
    )
    for name in ("lr", "rates", "optimizer", "steps") if looped else ():
        if name in given:
            raise ValueError(f"--{name} is not for a training function of your own: that says so itself")
    if {"lr", "rates"} <= given:
        raise ValueError("--lr is one learning rate for all, --rates are several to choose from: give one of the two")
    cluster = real_cluster(settings, given) if settings["real"] else _cluster(settings)
    steps = 0 if looped else check.whole("compare", "steps", settings["steps"])
    seeds = settings["seeds"]
    result = Comparison(
        command=command,
        workload=settings["workload"],
        cluster=cluster,
        entries=tuple(_entries(settings, looped)),
        seeds=tuple(seeds) if isinstance(seeds, list) else tuple(range(check.whole("compare", "seeds", seeds))),
        steps=steps,
        target=settings["target"],
        rates=_rates(settings["rates"]),
    )
    if result.rates and all(entry.rate_is_said for entry in result.entries):
        raise ValueError("--rates finds nothing to search for: every strategy of the plan has an lr of its own")
    # Two of one name are an error to be told now, not after the first run.
    _ = result.labels
    return result


def _cluster(settings: Mapping[str, Any]) -> Cluster:
    return Cluster(**{name: _several(settings[name]) for name in CLUSTER})


def _several(value: Any) -> Any:
    return () if value is None else tuple(value) if isinstance(value, list) else value


def _entries(settings: Mapping[str, Any], looped: bool) -> list[Entry]:
    usual = settings["optimizer"]
    optimizer = default_plan.optimizer(settings["workload"]) if usual is None else _optimizer(usual)
    listed = settings["strategies"] or default_plan.STRATEGIES
    if not isinstance(listed, list):
        raise TypeError(f"compare.strategies must be a list, got {listed!r}")
    return [_own_entry(one) if looped else _entry(one, optimizer, settings) for one in listed]


def _own_entry(one: Any) -> Entry:
    said = _said(one)
    if "lr" in said or "optimizer" in said:
        raise ValueError("lr and optimizer are not for a training function of your own: that says so itself")
    return Entry(text=said["strategy"], label=said.get("label"))


def _entry(one: Any, usual: OptimizerName, settings: Mapping[str, Any]) -> Entry:
    """A strategy's own optimizer and learning rate come before what is said for all."""
    said = _said(one)
    optimizer = _optimizer(said["optimizer"]) if "optimizer" in said else usual
    lr = said["lr"] if "lr" in said else _rate(settings, optimizer)
    return Entry(text=said["strategy"], label=said.get("label"), optimizer=optimizer, lr=lr, rate_is_said="lr" in said)


def _rates(said: Any) -> tuple[float, ...]:
    """From a list of numbers, or from a text of them with commas between."""
    if isinstance(said, str):
        try:
            said = [float(word) for word in said.split(",")]
        except ValueError:
            raise ValueError(f"--rates are numbers with commas between, such as 0.01,0.03,0.1, got {said!r}") from None
    if not isinstance(said, list | None):
        raise TypeError(f"compare.rates must be a list of numbers, got {said!r}")
    return tuple(said or ())


def _rate(settings: Mapping[str, Any], optimizer: OptimizerName) -> float:
    if settings["lr"] is None:
        return default_plan.learning_rate(settings["workload"], optimizer)
    return check.positive("compare", "lr", settings["lr"])


def _optimizer(name: str) -> OptimizerName:
    return OptimizerName(check.one_of("compare", "optimizer", str(name), tuple(each.value for each in OptimizerName)))


def _said(one: Any) -> dict[str, Any]:
    said = {"strategy": one} if isinstance(one, str) else one
    if not isinstance(said, dict) or not isinstance(said.get("strategy"), str):
        raise TypeError(f"a strategy is a text, or a table with the key strategy, got {one!r}")
    return said
