"""A page as a tree of elements, by the standard library's parser alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


@dataclass
class Element:
    """One element: its attributes, and the elements and texts inside it, in order."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def every(self, tag: str = "", **attributes: str) -> list[Element]:
        """Return the elements inside with this tag and these attributes (``class_`` matches one class)."""
        return [one for one in self.walk() if tag in ("", one.tag) and one._has(attributes)]

    def only(self, tag: str = "", **attributes: str) -> Element:
        """Return the one such element."""
        (found,) = self.every(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """All text inside, with single spaces."""
        return " ".join("".join(self._texts()).split())

    def rows(self) -> list[list[str]]:
        """Return the text of a table's body, row by row."""
        return [[c.text for c in row.walk() if c.tag in ("td", "th")] for row in self.only("tbody").every("tr")]

    def walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            yield from [child] if isinstance(child, str) else child._texts()

    def _has(self, attributes: dict[str, str]) -> bool:
        wanted = dict(attributes)
        if (name := wanted.pop("class_", None)) and name not in (self.attributes.get("class") or "").split():
            return False
        return all(self.attributes.get(key) == value for key, value in wanted.items())


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    """Return the document. Every element that is not void must be closed where it was opened."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].tag}> is never closed"
    return parser.open[0]
