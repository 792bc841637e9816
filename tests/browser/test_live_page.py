"""The live page in a real browser: of a real run that loses one of three nodes, and of runs written by hand."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from chromium import browser as browser

from flockstep.live import open_journal
from flockstep.live.server import Server
from flockstep.trace import Row, ViewChange

pytest.importorskip("plotly")

FLOCKSTEP = str(Path(sys.executable).with_name("flockstep"))

# Trains until it is told to stop; a step is long enough for three nodes to share two cores with a browser.
TRAIN = """
import pathlib, time, torch, flockstep as fs
torch.manual_seed(fs.rank())
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with fs.join(model, optimizer, fs.Swarm(period=4)) as node:
    while not pathlib.Path("stop").exists():
        x = torch.randn(16, 32)
        optimizer.zero_grad()
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        if node.step_count % 10 == 1:
            node.log(loss.item())
        time.sleep(0.02)
"""

STATES = "[...document.querySelectorAll('#nodes tbody tr')].map((row) => row.dataset.state).join(' ')"
LOOKS = "Number(document.body.dataset.looks || 0)"
STEPS = "Number(document.querySelector('tr[data-rank=\"0\"] td[data-name=steps]').textContent.replace(',', ''))"
DRAWN = "document.querySelectorAll('#{} .plot-container svg path').length"
WORDS = "document.querySelector('{}').innerText"


@pytest.fixture
def run(tmp_path):
    """A run of three nodes with its page, in a folder: the launcher, and the page's address."""
    (tmp_path / "train.py").write_text(TRAIN)
    launcher = subprocess.Popen(
        [FLOCKSTEP, "run", "-n", "3", "--keep-going", "--watch", "--journal", "journal", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        address = launcher.stderr.readline().split()[4]
        yield launcher, address
    finally:
        launcher.terminate()
        launcher.communicate()


def state(address):
    with urllib.request.urlopen(f"{address}state.json", timeout=30) as reply:
        return json.load(reply)


@pytest.mark.thorough
def test_a_run_is_seen_to_train_to_lose_a_node_and_to_end(run, browser, tmp_path):
    launcher, address = run
    browser.open(address)
    browser.until(f"{STATES} === 'here here here'", seconds=120)
    assert browser.run(WORDS.format("#title")) == "Swarm(period=4)"
    # Only elastic runs have a view.
    assert browser.run("document.querySelector('#view').hidden")

    # It goes on by itself: nobody loads the page again.
    before = browser.run(STEPS)
    browser.until(f"{STEPS} > {before}", seconds=60)
    browser.until("document.querySelector('#losses').data && document.querySelector('#losses').data.length === 3")
    points = "document.querySelector('#losses').data[0].x.length"
    browser.until(f"{points} > {browser.run(points)}", seconds=60)
    for name in ("losses", "timeline", "matrix"):
        browser.until(f"{DRAWN.format(name)} > 3")
    browser.until("document.querySelectorAll('#talks tbody tr').length >= 2", seconds=60)

    os.kill(state(address)["nodes"][2]["pid"], signal.SIGKILL)
    browser.until(f"{STATES} === 'here here gone'", seconds=60)
    row = browser.run(WORDS.format('tr[data-rank="2"]'))
    assert "GONE" in row
    assert "is dead, and it said no farewell" in row
    assert "2 here, 1 gone" in browser.run(WORDS.format("#headline"))
    assert "node 2: gone" in browser.run(WORDS.format("#events"))
    browser.until("document.querySelector('#timeline').innerHTML.includes('2 (gone)')")

    # The others do not stop for it, and nor does the page.
    before = browser.run(STEPS)
    browser.until(f"{STEPS} > {before}", seconds=60)
    assert all(url.startswith(address) for url in browser.requests())
    assert browser.complaints() == []

    # Afterwards, too, one can see how it ended.
    (tmp_path / "stop").touch()
    launcher.communicate(timeout=120)
    assert launcher.returncode == 0
    with Server(tmp_path / "journal") as server:
        browser.open(server.address)
        browser.until(f"{STATES} === 'done done gone'")
        assert "Ended after" in browser.run(WORDS.format("#headline"))


@pytest.fixture
def page(tmp_path):
    """A page of two nodes that talk, and the journals it is made of."""
    journals = [open_journal(tmp_path / "journals", rank=rank, size=2, strategy="<b>S</b>") for rank in range(2)]
    for rank, journal in enumerate(journals):
        for k in range(200):
            journal.spend(rank, ("computing", "talking", "waiting")[k % 3], k * 0.1, k * 0.1 + 0.09)
            journal.send(rank, 1 - rank, 1000)
        for k in range(5):
            journal.row(Row(4.0 * k, 10 * k, 1.0 / (k + 1), 1000.0 * k, 0.0))
        journal.view(ViewChange((0, 1), (), (), 0.0))
    for number in range(1, 31):
        journals[0].view(ViewChange((0,), (), (1,), 1.5, number=2 * number))
        journals[0].view(ViewChange((0, 1), (1,), (), 0.0, number=2 * number + 1))
    with Server(tmp_path / "journals") as server:
        yield server, journals
    for journal in journals:
        journal.close()


@pytest.mark.thorough
def test_the_page_by_hand(page, browser):
    server, journals = page
    browser.prefer("light")
    browser.open(server.address)
    browser.until(f"{LOOKS} > 0")
    # A name is text, whatever stands in it.
    assert browser.run(WORDS.format("#title")) == "<b>S</b>"

    # Who takes part, and the last changes of that.
    assert browser.run(WORDS.format("#taking-part")) == "Now: 0, 1 (2 of 2 nodes)."
    assert browser.run("document.querySelectorAll('#changes li').length") == 20
    assert "node 1 came; 2 take part" in browser.run(WORDS.format("#changes li:first-child"))
    assert "waited 1.5 s, at " in browser.run(WORDS.format("#changes li:last-child"))

    # Axes of the losses.
    browser.click("[data-axis=step]")
    browser.until("document.querySelector('#losses').data[0].x[4] === 40")
    browser.click("#log-loss")
    browser.until("document.querySelector('#losses').layout.yaxis.type === 'log'")

    # Zoom stays where it was put while new data comes, until one follows the run again.
    reach = "document.querySelector('#timeline').layout.xaxis.range"
    whole = browser.run(reach)
    browser.drag("#timeline", 0.4, 0.6)
    browser.until(f"{reach}[1] - {reach}[0] < {0.5 * (whole[1] - whole[0])}")
    zoomed = browser.run(reach)
    looks = browser.run(LOOKS)
    browser.until(f"{LOOKS} > {looks} + 1")
    assert browser.run(reach) == pytest.approx(zoomed)
    browser.click("[data-window='']")
    browser.until(f"{reach}[0] === 0 && {reach}[1] > {zoomed[1]}")

    # Dark and light.
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    browser.click("#theme")
    browser.until(f"{paper} !== '{light}'")

    # A phone has no room to the right.
    browser.resize(390, 800)
    looks = browser.run(LOOKS)
    browser.until(f"{LOOKS} > {looks}")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    for each in (
        "#nodes tr *",
        "#losses svg",
        "#timeline svg",
        "#matrix svg",
        "#talks td",
        "#events li",
        "#changes li *",
    ):
        rights = f"[...document.querySelectorAll('{each}')].map((one) => one.getBoundingClientRect().right)"
        assert 0 < browser.run(f"Math.max(...{rights})") <= 390

    for journal in journals:
        journal.close()
    browser.until("document.querySelector('#headline').innerText.includes('Ended after')")
    assert browser.complaints() == []


@pytest.mark.thorough
def test_before_the_first_node_the_page_waits(tmp_path, browser):
    with Server(tmp_path) as server:
        browser.open(server.address)
        assert browser.run(WORDS.format("#title")) == "Waiting for a run"
        journal = open_journal(tmp_path, rank=0, size=1, strategy="Local")
        browser.until("document.querySelector('#title').innerText === 'Local'")
        journal.close(RuntimeError("out of luck"))
        browser.until(f"{STATES} === 'failed'")
        assert "RuntimeError: out of luck" in browser.run(WORDS.format('tr[data-rank="0"]'))
        assert browser.complaints() == []
