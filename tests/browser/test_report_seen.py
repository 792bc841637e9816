"""The report in a real browser: it opens clean, everything is drawn, zoom and theme work, phones can read it."""

import itertools

import numpy as np
import pytest
from chromium import missing, started

pytest.importorskip("plotly")

import report_pages
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from flockstep.compare import report
from flockstep.timeline import KINDS

pytestmark = pytest.mark.slow

DESK, PHONE = (1280, 900), (360, 740)
RANGE = "document.getElementById(arguments[0]).layout.xaxis.range.map(Number)"
SHOWN = "Timelines.shown(document.getElementById(arguments[0]))"
FILLS = (
    "[...document.querySelectorAll('#' + arguments[0] + ' path.js-fill')].map((path) => path.getAttribute('d') || '')"
)
# A band's outline is a line too, of no width.
LINES = """[...document.querySelectorAll('#losses path.js-line')]
  .filter((path) => parseFloat(getComputedStyle(path).strokeWidth))
  .map((path) => [getComputedStyle(path).stroke, path.getAttribute('d')])"""
# Bottom right corners of what lies outside the window, unless it may be scrolled or is clipped by the plotting library.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter((each) => !each.closest('.wide, svg, pre'))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map((each) => each.tagName + '#' + each.id + '.' + each.className)"""


@pytest.fixture(scope="module")
def results():
    return report_pages.simulated()


@pytest.fixture(scope="module")
def page(results, tmp_path_factory):
    return report.write(results, tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests: starting it takes longer than using it."""
    if missing():
        pytest.skip(f"needs a browser to look at pages with; missing here: {missing()}")
    with started(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def opened(browser, page):
    """The page on a desk, by daylight."""
    browser.prefer("light")
    browser.resize(*DESK)
    browser.open(page)
    browser.until("document.querySelectorAll('#losses path.js-line').length")
    browser.requests()
    yield browser
    browser.run("localStorage.clear()")


def come_to(browser, plot):
    """Scroll to a picture, which is drawn then."""
    browser.show(f"#{plot}")
    browser.until("document.querySelector('#' + arguments[0] + ' .main-svg')", plot)


def kinds_in(browser, plot):
    """What is drawn of each kind, as the numbers handed to the plotting library."""
    return browser.run("document.getElementById(arguments[0]).data.map((t) => [t.name, Array.from(t.x)])", plot)


def test_it_opens_clean_and_everything_is_drawn(opened, page, results):
    strategies = len(results.runs)
    lines = opened.run(LINES)
    assert len(lines) == strategies
    assert all(path.count("L") > 5 for _, path in lines)
    assert len([fill for fill in opened.run(FILLS, "losses") if len(fill) > 50]) == strategies
    for index, outcomes in enumerate(results.runs):
        come_to(opened, f"timeline-{index}")
        kinds = {span.kind for span in outcomes[0].trace.timeline.spans}
        assert len([fill for fill in opened.run(FILLS, f"timeline-{index}") if fill]) == len(kinds)
        come_to(opened, f"pairs-{index}")
        # A heat map is an image: so wide, so high, and not all of one color.
        drawn = opened.until(
            "((image) => image && image.getAttribute('href').length > 200 && image.getBoundingClientRect().width)"
            "(document.querySelector('#' + arguments[0] + ' .heatmaplayer image'))",
            f"pairs-{index}",
        )
        assert drawn > 100
    assert opened.complaints() == []
    opened.open(page)
    opened.until("document.querySelectorAll('#losses path.js-line').length")
    assert opened.requests() == [page]


def test_the_curves_are_seen_in_their_colors(opened):
    """By the pixels of the screen itself."""
    seen = [stroke for stroke, _ in opened.run(LINES)]
    assert len(set(seen)) == 3
    opened.show("#losses")
    pixels = opened.pixels("#losses")
    for shade in seen:
        wanted = [int(number) for number in shade[4:-1].split(",")]
        assert (np.abs(pixels.astype(int) - wanted).max(axis=-1) <= 2).sum() > 50


@pytest.mark.thorough
def test_axes_scales_and_strategies_can_be_chosen(opened, results):
    def places():
        return opened.run(
            "document.getElementById('losses').data.filter((t) => t.mode != 'lines').map((t) => Array.from(t.x))"
        )

    def title():
        return opened.run("document.getElementById('losses').layout.xaxis.title.text")

    last = [max(run.trace.rows[-1].seconds for run in line) for line in results.runs]
    assert [x[-1] for x in places()] == pytest.approx(last)
    opened.click("input[value=bytes]")
    assert title() == "bytes sent per node"
    opened.click("input[value=samples]")
    assert title() == "gradients, all nodes"
    assert [x[-1] for x in places()] == [report_pages.STEPS * report_pages.NODES] * 3
    opened.click("#log-axis")
    opened.click("#log-loss")
    assert opened.run("['xaxis', 'yaxis'].map((a) => document.getElementById('losses')._fullLayout[a].type)") == [
        "log",
        "log",
    ]
    assert all(x[0] > 0 for x in places())
    opened.click("#chips button:nth-child(2)")
    assert len(places()) == 2
    assert opened.find("#chips button:nth-child(2)").get_attribute("aria-pressed") == "false"
    opened.find("#chips button:nth-child(2)").send_keys(Keys.ENTER)
    assert len(places()) == 3
    assert opened.complaints() == []


def test_losses_zoom_by_dragging_and_come_back(opened):
    before = opened.run(RANGE, "losses")
    opened.drag("#losses", 0.3, 0.6)
    low, high = opened.until("((now) => now[1] - now[0] < arguments[1] && now)(" + RANGE + ")", "losses", before[1] / 2)
    assert before[0] < low < high < before[1]
    # However long this machine takes from the first click to the second; the drag was none of them.
    slowly = "Object.assign(document.getElementById('losses'), {_mouseDownTime: 0})._context.doubleClickDelay = 60000"
    opened.run(slowly)
    ActionChains(opened.driver).double_click(opened.find("#losses")).perform()
    assert opened.until(
        "((now) => now[1] - now[0] > arguments[1] && now)(" + RANGE + ")", "losses", before[1] / 2
    ) == pytest.approx(before)
    assert opened.complaints() == []


@pytest.mark.thorough
def test_timelines_zoom_to_true_spans_all_together(opened, results):
    for index in range(3):
        come_to(opened, f"timeline-{index}")
    before, coarse = opened.run(RANGE, "timeline-0"), opened.run(SHOWN, "timeline-0")
    timeline = results.runs[0][0].trace.timeline
    assert coarse["spans"] == len(timeline.spans)
    assert coarse["merged"] > 0
    opened.drag("#timeline-0", 0.4, 0.5)
    opened.until("((now) => now[1] - now[0] < arguments[1])(" + RANGE + ")", "timeline-0", before[1] / 5)
    low, high = opened.run(RANGE, "timeline-0")
    inside = [span for span in timeline.spans if span.end > low and span.begin < high]
    assert opened.run(SHOWN, "timeline-0") == {"spans": len(inside), "merged": 0}
    for name, x in kinds_in(opened, "timeline-0"):
        mine = sorted((span.begin, span.end) for span in inside if span.kind == name)
        drawn = sorted((x[at], x[at + 2]) for at in range(0, len(x), 5))
        assert np.array(drawn) == pytest.approx(np.array(mine), abs=1e-6)
    assert opened.run(RANGE, "timeline-1") == opened.run(RANGE, "timeline-2") == [low, high]
    # Each for itself, once that is asked for.
    opened.click("#together")
    come_to(opened, "timeline-1")
    opened.find("#timeline-1").send_keys("+")
    assert opened.run(RANGE, "timeline-1")[0] > 0
    assert opened.run(RANGE, "timeline-0")[0] == 0
    assert opened.complaints() == []


@pytest.mark.thorough
def test_timelines_zoom_by_keys_and_buttons(opened):
    come_to(opened, "timeline-0")
    low, high = opened.run(RANGE, "timeline-0")
    plot = opened.find("#timeline-0")
    plot.send_keys("+")
    assert opened.run(RANGE, "timeline-0") == pytest.approx([0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high])
    plot.send_keys(Keys.ARROW_RIGHT)
    assert opened.run(RANGE, "timeline-0") == pytest.approx([low + 0.375 * high, low + 0.875 * high])
    plot.send_keys("0")
    assert opened.run(RANGE, "timeline-0") == pytest.approx([low, high])
    for name in ("in", "in", "left"):
        opened.click(f"[data-zoom={name}]")
    assert opened.run(RANGE, "timeline-0") == pytest.approx([low + 0.3125 * high, low + 0.5625 * high])
    opened.click("[data-zoom=all]")
    assert opened.run(RANGE, "timeline-0") == pytest.approx([low, high])
    # Nothing lies beyond the ends.
    opened.click("[data-zoom=out]")
    assert opened.run(RANGE, "timeline-0") == pytest.approx([low, high])


@pytest.mark.thorough
def test_shares_and_spans_are_those_of_the_run(opened, results):
    timeline = results.runs[0][0].trace.timeline
    lane = "Timelines.unpack(JSON.parse(document.getElementById('data').textContent).timelines[0])[3]"
    spans = list(timeline.of(3))
    kinds, begin, end = opened.run(f"((lane) => [lane.kinds, Array.from(lane.begin), Array.from(lane.end)])({lane})")
    assert kinds == "".join(span.kind[0] for span in spans)
    assert begin == pytest.approx([span.begin for span in spans], abs=1e-6)
    assert end == pytest.approx([span.end for span in spans], abs=1e-6)
    for bins in (1, 2, 37):
        edges = np.linspace(1.0, 4.0, bins + 1)
        told = opened.run(f"Object.entries(Timelines.shares({lane}, 1, 4, {bins})).map(([k, v]) => [k, Array.from(v)])")
        for letter, found in told:
            expected = [
                sum(max(0.0, min(span.end, right) - max(span.begin, left)) for span in spans if span.kind[0] == letter)
                / (right - left)
                for left, right in itertools.pairwise(edges)
            ]
            assert found == pytest.approx(expected, abs=1e-4)
    # Pointed at, a span is named.
    come_to(opened, "timeline-0")
    ActionChains(opened.driver).move_to_element(opened.find("#timeline-0")).perform()
    said = opened.run("document.querySelector('#timeline-0 + .readout').textContent")
    assert said.startswith("node ")
    assert any(f": {kind} for" in said for kind in KINDS)


@pytest.mark.thorough
def test_thousands_of_spans_are_drawn_as_few_corners(browser, tmp_path):
    label = "<img src=x onerror=alert(1)>"
    browser.resize(*DESK)
    browser.open(report_pages.write(report_pages.crowded(label), tmp_path).as_uri())
    come_to(browser, "timeline-0")
    assert browser.run(SHOWN, "timeline-0") == {"spans": 16 * 5000, "merged": 16}
    # Two corners a bin, and the ends: whatever the number of spans.
    bins = browser.run("Math.floor((document.getElementById('timeline-0').clientWidth - 60) / 2)")
    for _, x in kinds_in(browser, "timeline-0"):
        assert 0 < len(x) <= 16 * (2 * bins + 3)
    for _ in range(12):
        browser.find("#timeline-0").send_keys("+")
    shown = browser.run(SHOWN, "timeline-0")
    assert shown["merged"] == 0
    assert 16 <= shown["spans"] < 16 * 20
    assert browser.find("#chips button").text == label
    assert browser.complaints() == []


@pytest.mark.thorough
def test_the_theme_follows_the_system_until_one_is_chosen(opened, page):
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#losses .xtick text')).fill"
    light = opened.run(paper), opened.run(ink)
    opened.prefer("dark")
    dark = opened.run(paper), opened.until("((now) => now != arguments[0] && now)(" + ink + ")", light[1])
    assert dark[0] != light[0]
    opened.prefer("light")
    opened.until(ink + " == arguments[0]", light[1])
    opened.click("#theme")
    assert (opened.run(paper), opened.run(ink)) == dark
    opened.open(page)
    opened.until("document.querySelector('#losses .xtick text')")
    assert (opened.run(paper), opened.run(ink)) == dark
    opened.find("#theme").send_keys(Keys.ENTER)
    assert (opened.run(paper), opened.run(ink)) == light
    assert opened.complaints() == []


@pytest.mark.parametrize("size", [PHONE, DESK, (1920, 1080)], ids=str)
@pytest.mark.thorough
def test_nothing_is_wider_than_the_window(browser, page, size):
    browser.resize(*size)
    browser.open(page)
    for plot in ("losses", *(f"{kind}-{index}" for kind in ("timeline", "pairs") for index in range(3))):
        come_to(browser, plot)
    for theme in ("light", "dark"):
        browser.prefer(theme)
        assert browser.run("document.documentElement.scrollWidth") <= size[0]
        assert browser.run(TOO_WIDE) == []
    assert browser.complaints() == []


@pytest.mark.thorough
def test_the_table_is_sorted_by_any_column(opened):
    def column(number):
        return opened.run(
            f"[...document.querySelectorAll('#table tbody td:nth-child({number})')].map((c) => c.dataset.value)"
        )

    sent = [float(value) for value in column(5)]
    opened.click("#table th:nth-child(5) button")
    assert [float(value) for value in column(5)] == sorted(sent)
    opened.find("#table th:nth-child(5) button").send_keys(Keys.ENTER)
    assert [float(value) for value in column(5)] == sorted(sent, reverse=True)
    assert opened.find("#table th:nth-child(5)").get_attribute("aria-sort") == "descending"
    opened.click("#table th:first-child button")
    assert column(1) == sorted(column(1))


@pytest.mark.thorough
def test_printed_it_is_whole_and_on_white(opened):
    opened.click("#theme")
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run("document.documentElement.dataset.theme") == "light"
    opened.until("document.querySelectorAll('.card .plot .main-svg').length >= 6")
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.documentElement.dataset.theme") == "dark"


@pytest.mark.thorough
def test_under_a_finger_pictures_let_the_page_scroll_and_buttons_zoom(browser, page):
    browser.resize(*PHONE)
    browser.command("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        browser.open(page)
        come_to(browser, "timeline-0")
        assert browser.run("matchMedia('(pointer: coarse)').matches")
        for plot in ("losses", "timeline-0"):
            assert browser.run("document.getElementById(arguments[0])._fullLayout.dragmode", plot) is False
        low, high = browser.run(RANGE, "timeline-0")
        browser.click("[data-zoom=in]")
        assert browser.run(RANGE, "timeline-0") == pytest.approx([low + high / 4, low + 3 * high / 4])
        assert browser.complaints() == []
    finally:
        browser.command("Emulation.setTouchEmulationEnabled", enabled=False)
