"""Turn a matplotlib figure into inline SVG that belongs to the page: its fonts, its colours, no identifiers of its own.

matplotlib draws with stand-in colours. Here each becomes a CSS variable, so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree

from matplotlib.figure import Figure

ROLES = ("muted", "rule", "train", "test", "step", "pass", "clipped")
"""What a colour is for; ``--ROLE`` in ``page.css`` says what it looks like."""
COLOUR = {role: f"#0000{number:02x}" for number, role in enumerate(ROLES, 1)}
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")


def inline_svg(figure: Figure, *, key: str, title: str, description: str) -> str:
    """Return a figure as one ``<svg>`` element.

    Args:
        figure: drawn with the colours of ``COLOUR``, at 72 units an inch.
        key: unlike that of any other figure of the page; what the drawing defines is named after it.
        title: names the figure for a screen reader.
        description: says what it shows, in words.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", dpi=72, transparent=True, metadata=NO_METADATA)
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        # matplotlib's <style> would apply to the whole page; page.css says the same for figures only.
        for defs in [child for child in parent if child.find(f"{_SVG}style") is not None]:
            parent.remove(defs)
    referenced = {link[1:] for element in root.iter() if (link := element.get(_XLINK))}
    referenced |= set(re.findall(r"url\(#([^)]+)\)", buffer.getvalue().decode()))
    for element in root.iter():
        _simplify(element, referenced)
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": view, "role": "img", "aria-labelledby": f"{key}-title {key}-description"})
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        named = ElementTree.Element(tag, id=f"{key}-{'description' if tag == 'desc' else tag}")
        named.text = text
        root.insert(position, named)
    return _recolour(ElementTree.tostring(root, encoding="unicode"))


def _simplify(element: ElementTree.Element, referenced: set[str]) -> None:
    """Drop namespaces, which HTML does without, unused identifiers, and the font, which is the page's."""
    element.tag = element.tag.removeprefix(_SVG)
    element.tail = None
    if element.tag != "text":
        element.text = None
    if (link := element.attrib.pop(_XLINK, None)) is not None:
        element.set("href", link)
    if element.get("id") not in referenced:
        element.attrib.pop("id", None)
    if "style" in element.attrib:
        element.set("style", _FONT_FAMILY.sub("", element.attrib["style"]))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    if "d" in element.attrib:
        element.set("d", " ".join(element.attrib["d"].split()))


def _recolour(svg: str) -> str:
    for role, colour in COLOUR.items():
        svg = svg.replace(colour, f"var(--{role})")
    return svg
