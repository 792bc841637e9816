"""The page is for this machine: what is served, to whom, and what is told."""

import http.client
import json
import threading

import pytest

from flockstep.live import open_journal
from flockstep.live.server import Server
from flockstep.trace import Row, ViewChange

pytest.importorskip("plotly")


@pytest.fixture
def journal(tmp_path):
    made = open_journal(tmp_path, rank=0, size=2, strategy="Swarm(period=4)")
    yield made
    made.close()


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One for all who only look; of a run that is over."""
    folder = tmp_path_factory.mktemp("run")
    open_journal(folder, rank=0, size=1, strategy="Swarm(period=4)").close()
    with Server(folder) as made:
        yield made


def get(server, path, method="GET", host=None):
    port = int(server.address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.headers
    finally:
        connection.close()


def test_it_listens_on_loopback_alone(page):
    assert page.address.startswith("http://127.0.0.1:")
    assert page._http.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/look.css", "/theme.js", "/charts.js", "/timeline.js"])
def test_every_part_of_the_page_is_there_and_loads_nothing_from_elsewhere(page, path):
    status, body, headers = get(page, path)
    assert status == 200
    assert len(body) > 200
    assert b"http://" not in body.replace(b"http://www.w3.org", b"")
    assert b"https://" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_the_plotting_library_comes_from_here(page):
    status, body, headers = get(page, "/plotly.js")
    assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    assert b"plotly.js v" in body[:200]


@pytest.mark.parametrize("path", ["/../server.py", "/etc/passwd", "/node-0-0.jsonl", "/page.py"])
def test_nothing_else_is_served(page, path):
    assert get(page, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_can_only_be_looked_at(page, method):
    assert get(page, "/state.json", method=method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", "0.0.0.0"])
def test_a_foreign_name_for_this_machine_is_refused(page, host):
    status, body, _ = get(page, "/state.json", host=host)
    assert status == 403
    assert b"Swarm" not in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1"])
def test_its_own_names_are_taken(page, host):
    assert get(page, "/state.json", host=host)[0] == 200


def test_a_folder_without_journals_is_a_run_to_come(server):
    status, body, _ = get(server, "/state.json")
    assert status == 200
    assert json.loads(body)["nodes"] == []


def test_the_state_is_told_and_told_again_only_when_it_has_changed(server, journal):
    journal.row(Row(0.5, 10, 0.25, 100.0, float("nan")))
    journal.close()
    told = json.loads(get(server, "/state.json?window=60")[1])
    assert told["strategy"] == "Swarm(period=4)"
    assert [node["state"] for node in told["nodes"]] == ["done", "awaited"]
    assert told["nodes"][0]["loss"] == 0.25
    status, body, _ = get(server, f"/state.json?window=60&known={told['mark']}")
    assert (status, body) == (204, b"")
    assert get(server, "/state.json?window=60&known=other")[0] == 200


def test_who_takes_part_is_told_as_json_where_the_run_is_elastic(server, journal):
    journal.view(ViewChange((0, 1), (), (), 0.0))
    journal.view(ViewChange((0,), (), (1,), 2.5, number=2))
    journal.close()
    view = json.loads(get(server, "/state.json")[1])["view"]
    assert (view["members"], view["who"]) == ([0], "0")
    assert [(change["what"], change["waited"]) for change in view["changes"]] == [("node 1 left out", 2.5)]


@pytest.mark.parametrize("window", ["x", "nan", "-1", "inf"])
def test_a_window_that_is_none_is_refused(page, window):
    assert get(page, f"/state.json?window={window}")[0] == 400


def test_nobody_looks_so_nobody_is_waited_for(server):
    server.let_pages_see_the_end()


@pytest.mark.slow
def test_a_page_that_asked_just_now_may_ask_once_more(server):
    get(server, "/state.json")
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (server.let_pages_see_the_end(), ended.set()))
    waiter.start()
    while not ended.is_set():
        assert get(server, "/state.json")[0] == 200
    waiter.join()
