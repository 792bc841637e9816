"""How a node does, asked for as Prometheus does: a GET on the port of its mailbox."""

import http.client
import os
from functools import partial

import pytest
import torch

import flockstep as fs
from flockstep.backends.real import metrics
from flockstep.backends.real.mailbox.endpoint import ListenOn, open_endpoint
from flockstep.backends.real.mailbox.limits import Limits
from flockstep.backends.real.mailbox.mail_fabric import MailFabric
from flockstep.backends.real.node import RealNode
from flockstep.backends.real.recording import Recording
from flockstep.backends.real.rounds.elastic_fabric import ElasticFabric
from flockstep.backends.real.security import keys
from flockstep.live.reader import Reader
from flockstep.trace import NodeReport, Row, ViewChange

pytest.importorskip("prometheus_client", reason="needs pip install prometheus-client")

from prometheus_client.parser import text_string_to_metric_families

SCRAPE = {"User-Agent": "Prometheus/3.0", "Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip"}


class Still(RealNode):
    """A node that does nothing."""

    steps = gradient = step = None


def read(text):
    """Samples by name and labels, as Prometheus' own reader has them."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(address, context=None):
    host, port = address.rsplit(":", 1)
    make = http.client.HTTPConnection if context is None else partial(http.client.HTTPSConnection, context=context)
    client = make(host, int(port), timeout=20)
    try:
        client.request("GET", "/metrics", headers=SCRAPE)
        response = client.getresponse()
        return response.status, response.getheader("content-type"), response.read().decode()
    finally:
        client.close()


@pytest.fixture
def fabrics(tmp_path):
    """Two nodes' ways to each other, with keys or without."""
    made = []

    def make(*, secured):
        if secured:
            keys.create(tmp_path, 2)
        for rank in range(2):
            site = ListenOn(keys=keys.Keys.find(tmp_path, rank) if secured else None)
            made.append(MailFabric(rank, 2, 20.0, partial(open_endpoint, bytes(16), rank, 2, Limits(20.0), site)))
        first, second = (fabric.mailbox().members for fabric in made)
        first.learn(str(second.me))
        second.learn(str(first.me))
        return made

    yield make
    for fabric in made:
        fabric.close()


@pytest.mark.parametrize("secured", [False, True])
def test_a_report_over_the_wire(fabrics, tmp_path, secured):
    nodes = [Still(fabric, rank, 2, 0) for rank, fabric in enumerate(fabrics(secured=secured))]
    node = nodes[1]
    node.tally = NodeReport(1, 7, 1, 9, 1234, 567, 1.5, 0.25, 2.0, counts={'odd "name"\\\n': 3})
    node.rows = [Row(0.0, 0, 5.0, 0.0, 0.0), Row(1.0, 7, 0.125, 0.0, 0.0)]
    context = keys.Keys.find(tmp_path, 0).client_context() if secured else None
    if context is not None:
        # Prometheus would be told the name of the node: tls_config.server_name.
        context.check_hostname = False
    status, kind, text = ask(node.fabric.mailbox().members.me.address, context)  # type: ignore[attr-defined]
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found, rank = read(text), ("rank", "1")
    assert found["flockstep_steps_total", rank] == 7
    assert found["flockstep_skipped_steps_total", rank] == 1
    assert found["flockstep_gradients_total", rank] == 9
    assert found["flockstep_sent_bytes_total", rank] == 1234
    assert found["flockstep_received_bytes_total", rank] == 567
    assert found["flockstep_spent_seconds_total", ("kind", "computing"), rank] == 1.5
    assert found["flockstep_spent_seconds_total", ("kind", "waiting"), rank] == 0.25
    assert found["flockstep_spent_seconds_total", ("kind", "talking"), rank] == 2.0
    assert found["flockstep_events_total", ("name", 'odd "name"\\\n'), rank] == 3
    assert found["flockstep_living_peers", rank] == 1
    assert found["flockstep_loss", rank] == 0.125
    assert 0 < found["flockstep_run_seconds", rank] <= node.now


def test_who_has_no_certificate_is_told_nothing(fabrics):
    node = Still(fabrics(secured=True)[0], 0, 2, 0)
    with pytest.raises(OSError):
        ask(node.fabric.mailbox().members.me.address)  # type: ignore[attr-defined]


def test_one_who_dies_is_counted_out(fabrics):
    node = Still(fabrics(secured=False)[0], 0, 2, 0)
    address = node.fabric.mailbox().members.me.address  # type: ignore[attr-defined]
    assert read(ask(address)[2])["flockstep_living_peers", ("rank", "0")] == 1
    node.fabric.mailbox().members.lose(1, "it died")  # type: ignore[attr-defined]
    assert read(ask(address)[2])["flockstep_living_peers", ("rank", "0")] == 0


def test_a_mailbox_without_a_node_has_nothing_to_show():
    house = open_endpoint(bytes(16), 0, 1, Limits(20.0), ListenOn())
    try:
        assert ask(house.box.members.me.address)[0] == 404
    finally:
        house.close()


def test_without_a_loss_there_is_none():
    names = {name for name, *_ in read(metrics.text(NodeReport(3), 1.0, 0, None))}
    assert "flockstep_loss" not in names
    assert "flockstep_events_total" not in names
    assert "flockstep_steps_total" in names


def test_in_an_elastic_run_who_takes_part_is_counted():
    report = NodeReport(3, views=[ViewChange((0, 3), (), (1,), 1.5), ViewChange((0, 1, 3), (1,), (), 0.0)])
    found = read(metrics.text(report, 1.0, 2, None, 3))
    assert found["flockstep_view_nodes", ("rank", "3")] == 3
    assert found["flockstep_view_changes_total", ("rank", "3")] == 2
    # One that is not let in yet, and one of a run that is not elastic.
    found = read(metrics.text(NodeReport(3), 1.0, 2, None, 0))
    assert found["flockstep_view_nodes", ("rank", "3")] == found["flockstep_view_changes_total", ("rank", "3")] == 0
    assert "view" not in metrics.text(NodeReport(3), 1.0, 2, None)


@pytest.mark.parametrize("newcomer", [False, True])
def test_an_elastic_node_tells_of_every_change(newcomer, tmp_path):
    site = partial(open_endpoint, bytes(16), 0, 3, Limits(20.0), ListenOn())
    fabric = ElasticFabric(0, 3, 20.0, site, fs.Elastic(), newcomer=newcomer)
    node = Still(fabric, 0, 3, 0, Recording(journal=str(tmp_path)))
    try:
        sizes = [read(node.metrics())["flockstep_view_nodes", ("rank", "0")]]
        for change in (ViewChange((0, 2), (), (1,), 1.5, number=2), ViewChange((0, 1, 2), (1,), (), 0.0, number=3)):
            node._view_changed(change)
            sizes.append(read(node.metrics())["flockstep_view_nodes", ("rank", "0")])
        assert sizes == [0 if newcomer else 3, 2, 3]
        assert read(node.metrics())["flockstep_view_changes_total", ("rank", "0")] == 2
    finally:
        node.close()
    told = [change.members for change in Reader(tmp_path).look()[0].views]
    assert told == [(0, 1, 2)] * (not newcomer) + [(0, 2), (0, 1, 2)]


def test_a_loss_that_is_not_a_number_is_still_read():
    assert read(metrics.text(NodeReport(3), 1.0, 0, float("inf")))["flockstep_loss", ("rank", "3")] == float("inf")


@pytest.mark.slow
def test_loops_in_processes_show_how_it_goes_while_it_goes(tmp_path):
    """With keys: each asks itself in the middle, as node 0 of a run of two."""
    keys.create(tmp_path, 2)

    def train():
        os.environ["FLOCKSTEP_KEYS"] = str(tmp_path)
        os.environ["FLOCKSTEP_HOST"] = "127.0.0.1"
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with fs.join(model, optimizer, fs.LocalSGD(period=2)) as node:
            for _ in range(6):
                optimizer.zero_grad()
                loss = model(torch.ones(1, 3)).square().mean()
                loss.backward()
                optimizer.step()
                node.log(loss.item())
            context = keys.Keys.find(tmp_path, node.rank).client_context()
            context.check_hostname = False
            return read(ask(node.address, context)[2]), node.rows[-1].loss, node.report().bytes_sent

    for rank, (found, loss, sent) in fs.launch(train, nodes=2, timeout=60).results.items():
        label = ("rank", str(rank))
        assert found["flockstep_steps_total", label] == 6
        assert found["flockstep_loss", label] == loss
        assert 0 < found["flockstep_sent_bytes_total", label] <= sent
        assert found["flockstep_living_peers", label] == 1
        assert found["flockstep_spent_seconds_total", ("kind", "computing"), label] > 0
