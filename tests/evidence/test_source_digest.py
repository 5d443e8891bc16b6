"""Digests of files and of the package, computed again with hashlib alone."""

import hashlib
from pathlib import Path

import assay
from assay.evidence.digest import file_digest, source_digest


def test_a_file_digest_is_the_sha256_of_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert file_digest(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


def test_the_source_digest_covers_every_source_file_and_nothing_else(tmp_path):
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "b.py").write_text("b")
    (package / "inner" / "a.py").write_text("a")
    (package / "page.j2").write_text("page")
    (package / "page.css").write_text("style")
    before = source_digest(package)
    listed = [("b.py", b"b"), ("inner/a.py", b"a"), ("page.css", b"style"), ("page.j2", b"page")]
    lines = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in listed)
    assert before == hashlib.sha256(lines.encode()).hexdigest()

    (package / "inner" / "a.pyc").write_text("compiled")
    assert source_digest(package) == before
    (package / "inner" / "a.py").rename(package / "inner" / "c.py")
    assert source_digest(package) != before


def test_this_package_has_code_template_and_style_in_its_digest():
    suffixes = {path.suffix for path in Path(assay.__file__).parent.rglob("*") if "__pycache__" not in path.parts}
    assert suffixes - {""} <= {".py", ".j2", ".css", ".typed"}
