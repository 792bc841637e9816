"""The browser of the tests sees what is wrong with a page: else tests that find nothing wrong would say nothing."""

import socket

import pytest
from chromium import browser as browser

pytestmark = pytest.mark.slow


def test_errors_and_requests_are_seen(browser, tmp_path):
    with socket.socket() as taken:
        # Bound and not listening: whoever asks there is refused.
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/picture.png"
        page = tmp_path / "page.html"
        broken = "<script>console.error('ouch'); nowhere();</script>"
        page.write_text(f"<!DOCTYPE html><title>x</title><img src='{address}'>{broken}")
        browser.open(page.as_uri())
        assert browser.requests() == [page.as_uri(), address]
        complaints = "\n".join(browser.complaints())
    assert "ouch" in complaints
    assert "nowhere is not defined" in complaints
    page.write_text("<!DOCTYPE html><title>x</title><p>Nothing is wrong here.")
    browser.open(page.as_uri())
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_sizes_and_themes_are_what_was_asked_for(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html><meta name='viewport' content='width=device-width'><title>x</title>")
    for width in (360, 1280):
        browser.resize(width, 700)
        browser.open(page.as_uri())
        assert browser.run("[innerWidth, innerHeight]") == [width, 700]
    for theme in ("dark", "light"):
        browser.prefer(theme)
        assert browser.run(f"matchMedia('(prefers-color-scheme: {theme})').matches")
