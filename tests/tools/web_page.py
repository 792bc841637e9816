"""A page as a parser sees it."""

import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """Every tag with its attributes, the text of scripts by their id, the last table's cells, and all other text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words, self.table, self._script = [], [], [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._script = dict(attributes).get("id", tag)
            self.scripts.append([self._script, ""])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._script = None
        if tag == "table":
            self.told_table = [[" ".join(cell.split()) for cell in row] for row in self.table]
            self.table = []

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[-1][1] += data
            return
        self.words.append(data)
        if self.table and self.table[-1]:
            self.table[-1][-1] += data if not self.table[-1][-1] else f" {data}"

    @property
    def told(self):
        [text] = [text for name, text in self.scripts if name == "data"]
        return json.loads(text)

    def check_alone(self):
        """Nothing is loaded from anywhere, and the page's own policy says so; gives that policy."""
        for tag, attributes in self.tags:
            assert tag not in ("link", "iframe", "img", "object", "embed", "base", "source")
            assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), (tag, attributes)
        styles = " ".join(text for name, text in self.scripts if name == "style")
        assert "url(" not in styles
        assert "@import" not in styles
        [policy] = [a["content"] for _, a in self.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")
        assert "http" not in policy
        assert "*" not in policy
        return policy
