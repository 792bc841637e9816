import re

import pytest
import torch

import flockstep as fs
from flockstep.texts import parse
from flockstep.workloads.convex import Quadratics, Quartics
from flockstep.workloads.language import CharLSTM

CODED = "LocalSGD(period=4, average=Coded(codec=Cast(dtype='bf16')))"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("DataParallel", fs.DataParallel()),
        (" DataParallel( ) ", fs.DataParallel()),
        ("CELGC(period=8)", fs.CELGC(period=8)),
        ("CELGC(period=8, gamma=1.0)", fs.CELGC(period=8, gamma=1.0)),
        ("fs.CELGC(period=8, gamma=1e-1)", fs.CELGC(period=8, gamma=0.1)),
        ("DataParallel(clip=ClipNorm(max_norm=2))", fs.DataParallel(clip=fs.clips.ClipNorm(max_norm=2))),
        ("DataParallel(average=Exact)", fs.DataParallel(average=fs.averages.Exact())),
        (CODED, fs.LocalSGD(period=4, average=fs.averages.Coded(codec=fs.codecs.Cast(dtype="bf16")))),
        (
            "LocalSGD(period=2, average=Mixed(topology=Torus(rows=None), codec=Raw()))",
            fs.LocalSGD(period=2, average=fs.averages.Mixed(topology=fs.topologies.Torus(), codec=fs.codecs.Raw())),
        ),
    ],
)
def test_a_strategy_is_read(text, made):
    assert parse.strategy(text) == made


def test_every_public_strategy_and_part_can_be_named():
    assert {"DataParallel", "LocalSGD", "CELGC", "CELGCUpdate", "Episode", "EpisodePlus"} <= set(parse.STRATEGIES)
    assert {"Exact", "Coded", "Mixed", "ClipNorm", "ClipStep", "Cast", "Raw", "Ring", "Random"} <= set(parse.PARTS)
    assert not {"Strategy", "Codec", "Network", "Crash"} & (set(parse.STRATEGIES) | set(parse.PARTS))


@pytest.mark.slow
def test_a_workload_is_read():
    assert parse.workload("quadratics") == Quadratics()
    assert parse.workload("quadratics(dim=100, dtype=float64)") == Quadratics(dim=100, dtype=torch.float64)
    assert parse.workload("quartics(H=2.5)") == Quartics(H=2.5)
    assert isinstance(parse.workload("shakespeare(hidden=8)"), CharLSTM)


MISTAKES = [
    (
        "CLEGC(period=8)",
        "there is no strategy 'CLEGC' (did you mean CELGC?); there are ADPSGD, CELGC, CELGCUpdate, Choco",
    ),
    ("celgc(period=8)", "(did you mean CELGC?)"),
    ("Foo", "there is no strategy 'Foo'; there are ADPSGD, CELGC"),
    (
        "ClipNorm(max_norm=1)",
        "ClipNorm is a part of a strategy, not a strategy; write it like CELGC(period=8)",
    ),
    ("CELGC(8, 1.0)", "CELGC takes arguments by keyword only; write CELGC(period=8, gamma=1.0), not CELGC(8, 1.0)"),
    (
        "CELGC(periods=8)",
        "CELGC has no argument 'periods' (did you mean period?); its arguments are period, gamma, average",
    ),
    ("DataParallel(average=Coded(codec=Cast('bf16')))", "write Cast(dtype='bf16'), not Cast('bf16')"),
    ("DataParallel(average=Exact(3))", "Exact takes arguments by keyword only; write Exact(), not Exact(3)"),
    ("DataParallel(average=Exact(a=1))", "Exact has no argument 'a'; it takes none"),
    ("CELGC", "CELGC needs period; write CELGC(period=...)"),
    ("CELGCUpdate(period=8)", "CELGCUpdate needs gamma; write CELGCUpdate(period=..., gamma=...)"),
    ("DataParallel(clip=ClipNorm)", "ClipNorm needs max_norm; write ClipNorm(max_norm=...)"),
    ("LocalSGD(period=8, period=9)", "LocalSGD.period is given twice"),
    ("LocalSGD(**{'period': 8})", "write every argument out"),
    ("LocalSGD(period=8", "cannot read the strategy 'LocalSGD(period=8' ('(' was never closed); write it like CELGC("),
    ("LocalSGD(period=8) + 1", "cannot read the strategy 'LocalSGD(period=8) + 1'; write it like CELGC("),
    ("", "cannot read the strategy ''"),
    ("3", "cannot read the strategy '3'; write it like"),
    ("os.system('true')", "cannot read 'os.system'; a name is a single word, such as LocalSGD"),
    ("LocalSGD(period=__import__('os'))", "there is no part '__import__'"),
    (
        "LocalSGD(period=2 ** 3)",
        "cannot read the value '2 ** 3'; values are numbers, text in quotes, True, False and None",
    ),
    ("LocalSGD(period=[1 for _ in 'a'])", "cannot read the value"),
    ("LocalSGD(period=(lambda: 1)())", "cannot read 'lambda: 1'"),
    ("LocalSGD(period=8, average=Coded(codec=Cats()))", "there is no part 'Cats' (did you mean Cast?)"),
    ("LocalSGD(period=8, average=Coded(codec=Cast(dtype=bf16)))", "text goes in quotes, as in 'bf16'"),
    ("LocalSGD(period=0)", "LocalSGD.period must be at least 1, got 0"),
    ("(" * 500 + ")" * 500, "cannot read the strategy"),
    ("\0", "cannot read the strategy"),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES, ids=[text[:40] for text, _ in MISTAKES])
def test_each_mistake_gets_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        parse.strategy(text)
    assert "\n" not in str(caught.value)


def test_a_wrong_kind_of_part_is_refused_by_the_strategy():
    with pytest.raises(TypeError, match=r"LocalSGD\.average must be an average such as Exact\(\)"):
        parse.strategy("LocalSGD(period=8, average=ClipNorm(max_norm=1.0))")


def test_workloads_have_sentences_of_their_own():
    with pytest.raises(ValueError, match=r"there is no workload 'shakespear' \(did you mean shakespeare\?\)"):
        parse.workload("shakespear")
    with pytest.raises(ValueError, match=r"quadratics has no argument 'rank'.*; its arguments are dim, heterogeneity"):
        parse.workload("quadratics(rank=1)")
    with pytest.raises(ValueError, match=r"float64 is not called; leave its parentheses out"):
        parse.workload("quadratics(dtype=float64())")
    with pytest.raises(ValueError, match=r"write quadratics\(dim=100\), not quadratics\(100\)"):
        parse.workload("quadratics(100)")


def test_missing_data_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="set the environment variable FLOCKSTEP_DATA"):
        parse.workload("wikitext2")
