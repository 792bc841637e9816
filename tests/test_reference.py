"""``help()`` answers: what a public name does, what each of its arguments means, where an algorithm comes from."""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import re
import sys
import textwrap

import pytest
import torch

import flockstep as fs
from flockstep.workloads.convex import Quadratics

PLACES = ("", "codecs", "topologies", "clips", "averages", "faults", "tails", "lda", "rl", "testing")
NEEDS = {"lda": "sklearn"}
# Of one name, one meaning: what a strategy says of it begins so.
WORDING = {
    "average": "How the mean over all nodes is taken (see ``fs.averages``).",
    "clip": "What bounds a gradient (see ``fs.clips``).",
    "codec": "How vectors become bytes (see ``fs.codecs``).",
    "gamma": "Longest step, as a distance in parameter space.",
    "matching_seed": "Seed from which every node draws the same pairs.",
    "max_steps_in_flight": "Steps that a worker may take while a push is under way; 0: it waits for the reply.",
    "outer_lr": "Rate of the outer step.",
    "outer_momentum": "Momentum of the outer step, from 0 to below 1.",
    "overlap": "True: messages travel while the next gradient is computed",
    "patience": "Steps that a worker takes without a reply before it ends with ``LostPeer``.",
    "period": "Steps that a node takes between two exchanges.",
    "published": "True: the update as published.",
    "pull": "Share",
    "server": "Rank of the node that keeps the",
    "server_trains": "Whether the server's node takes steps, too.",
    "topology": "Which nodes are neighbours (see ``fs.topologies``).",
}


@functools.cache
def public():
    """Every public class and function, by the name a user writes; looked up by tests, not when they are collected."""
    found = {}
    for place in PLACES:
        if place in NEEDS and importlib.util.find_spec(NEEDS[place]) is None:
            continue
        module = importlib.import_module(f"flockstep.{place}".rstrip("."))
        for name in module.__all__:
            part = getattr(module, name)
            if inspect.isclass(part) or inspect.isfunction(part):
                found[".".join(("flockstep", *([place] if place else []), name))] = part
    return found


def strategies():
    """The public strategies among them."""
    made = {name: part for name, part in public().items() if dataclasses.is_dataclass(part)}
    return {name: part for name, part in made.items() if inspect.iscoroutinefunction(getattr(part, "run", None))}


def section(part, title):
    """A section of a docstring, as Google writes them: its entries by name, or its text where there are none."""
    text = inspect.getdoc(part) or ""
    match = re.search(rf"^{title}:\n((?:    .*\n|\n)*)", f"{text}\n", re.MULTILINE)
    return textwrap.dedent(match[1]) if match else ""


def entries(part, title="Args"):
    """What stands under ``Args:``, by name."""
    found = re.findall(r"^\*{0,2}(\w+): (.*(?:\n    .*)*)", section(part, title), re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def arguments(part):
    """The fields of a dataclass, the parameters of ``__init__`` or of a function."""
    if inspect.isclass(part) and "__init__" not in vars(part):
        return set()
    names = {name for name in inspect.signature(part).parameters if name not in ("self", "args", "kwargs")}
    return names | ({field.name for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else set())


def attributes(part):
    """What a class that is not made by a call of its own says that its objects have."""
    made = "__init__" in vars(part) or dataclasses.is_dataclass(part)
    return set() if made else {name for name in inspect.get_annotations(part) if not name.startswith("_")}


def test_every_argument_is_explained():
    wrong = []
    for name, part in public().items():
        asked, told = arguments(part), set(entries(part))
        wrong += [f"{name}: no line for {argument!r} under Args:" for argument in sorted(asked - told)]
        wrong += [f"{name}: Args: names {argument!r}, which it does not take" for argument in sorted(told - asked)]
        if inspect.isclass(part):
            missing = attributes(part) - set(entries(part, "Attributes"))
            wrong += [f"{name}: no line for {attribute!r} under Attributes:" for attribute in sorted(missing)]
    assert not wrong, "\n".join(wrong)


def test_every_strategy_has_its_equation_its_source_and_an_example():
    wrong = []
    for name, part in strategies().items():
        text, whole = inspect.getdoc(part), sys.modules[part.__module__].__doc__
        before = text.split("\nArgs:")[0]
        if not re.search(r"^    .*(<-| = )", before, re.MULTILINE):
            wrong.append(f"{name}: no equation (an indented line with <- or =) before Args:")
        cited = r"arXiv|\b(19|20)\d\d\b"
        if re.search(cited, whole) and not re.search(cited, before):
            wrong.append(f"{name}: no citation (arXiv or a year) before Args:, though its module has one")
        if not section(part, "Example"):
            wrong.append(f"{name}: no Example:")
    assert not wrong, "\n".join(wrong)


def test_one_wording_for_one_argument():
    wrong = [
        f"{name}.{argument}: begins with {told!r}, should with {WORDING[argument]!r}"
        for name, part in strategies().items()
        for argument, told in entries(part).items()
        if argument in WORDING and not told.startswith(WORDING[argument])
    ]
    assert not wrong, "\n".join(wrong)


def test_examples_are_python():
    for name, part in public().items():
        try:
            ast.parse(section(part, "Example"))
        except SyntaxError as error:
            pytest.fail(f"{name}: its Example: is no Python: {error}")


# What these need beside a model and a workload is more than an example is worth: documents, games, nodes under way.
NOT_RUN = re.compile(
    r"flockstep\.(lda|rl|testing)\.|"
    r"flockstep\.(Average|Budget|Clip|Message|Node|Pending|Strategy|averages\.Feedback|codecs\.Codec|launch|train)$"
)


@pytest.mark.slow
def test_examples_run(tmp_path, monkeypatch):
    """On one node that is a loop, or on virtual ones."""
    monkeypatch.chdir(tmp_path)
    for name, part in public().items():
        if not section(part, "Example") or NOT_RUN.match(name):
            continue
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        steps = []

        def train(model, optimizer, steps=steps):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
                steps.append(1)

        names = {"fs": fs, "torch": torch, "model": model, "optimizer": optimizer, "train": train}
        names |= {"workload": Quadratics(dim=4), "loss_fn": torch.nn.functional.mse_loss}
        names |= {"loader": [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(100)]}
        try:
            exec(section(part, "Example"), names)
        except Exception as error:
            pytest.fail(f"{name}: its Example: raises {error!r}")
        assert name not in strategies() or len(steps) == 3, f"{name}: its Example: does not train"
