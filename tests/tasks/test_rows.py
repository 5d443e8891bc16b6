"""Rows from files, functions and lists: all of them, or the line that cannot be read."""

import csv
import hashlib
import json
import re

import pytest

from assay.errors import ConfigError
from assay.tasks.rows import read_rows

ROWS = [
    {"prompt": 'say "a,b"\nand c', "answer": "1", "note": "é\u2028line"},
    {"prompt": "2+2=", "answer": "4", "note": "x"},
]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(path, rows):
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def refused(source, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        read_rows(source)
    assert "\n" not in str(caught.value)


def test_every_format_gives_the_same_rows(tmp_path, monkeypatch):
    lines = jsonl(tmp_path / "rows.jsonl", ROWS)
    table = tmp_path / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
    (tmp_path / "rows_of_mine.py").write_text(f"def make(): return iter({ROWS!r})\n")
    monkeypatch.chdir(tmp_path)
    sources = [lines, str(lines), table, "rows_of_mine:make", ROWS, (row for row in ROWS)]
    for source in sources:
        assert [row.values for row in read_rows(source).rows] == ROWS


def test_parquet_gives_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    chat = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}], "level": 3} for row in ROWS]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chat), path)
    made = read_rows(path)
    assert [row.values for row in made.rows] == chat and made.rows[1].place == f"{path} row 1"
    assert made.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    refused(write(tmp_path / "bad.parquet", path.read_bytes()[:-20]), "bad.parquet: not a Parquet file")


def test_a_dataset_is_read_by_iterating_it():
    """What datasets.Dataset is to us: something that yields one mapping a row."""

    class Dataset:
        def __iter__(self):
            return iter(ROWS)

    assert [row.values for row in read_rows(Dataset()).rows] == ROWS
    refused({"train": ROWS, "test": ROWS}, "choose one of its splits")


def test_the_digest_is_of_the_bytes_or_of_the_rows(tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", ROWS)
    assert read_rows(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    digests = [read_rows(rows).sha256 for rows in (ROWS, list(map(dict, ROWS)), ROWS[::-1], ROWS[:1])]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_no_rows(tmp_path):
    text = "\ufeff" + "\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\r\n \r\n"
    made = read_rows(write(tmp_path / "rows.jsonl", text))
    assert [row.values for row in made.rows] == ROWS
    assert [row.place.rpartition(" ")[2] for row in made.rows] == ["1", "3"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "a"', "line 2: Expecting"),
        (b"[1, 2]", "line 2: [1, 2] is not an object"),
        (b'"text"', "line 2: 'text' is not an object"),
        (b'{"prompt": "a", "prompt": "b"}', "line 2: key 'prompt' comes twice"),
        (b'{"prompt": "a", "answer": NaN}', "line 2: NaN is not JSON"),
        (b'{"prompt": "a", "answer": -Infinity}', "line 2: -Infinity is not JSON"),
        (b'{"prompt": "a", "meta": {"x": 1, "x": 2}}', "line 2: key 'x' comes twice"),
        (b'{"prompt": "\xff"}', "line 2: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "line 2: "),
        (b"1" * 5000, "line 2: "),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, words):
    refused(write(tmp_path / "rows.jsonl", b'{"prompt": "fine"}\n' + line + b"\n"), words)


def test_the_first_bad_lines_are_named_and_the_others_counted(tmp_path):
    refused(write(tmp_path / "r.jsonl", "{\n" * 5), "line 1: ")
    refused(write(tmp_path / "r.jsonl", "{\n" * 5), "(and 2 more lines)")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prompt,answer\na,1\nb\n", "line 3: 1 cells for 2 columns"),
        ("prompt,answer\n1,000 sheep,1\n", "line 2: 3 cells for 2 columns"),
        ('prompt,answer\n"two\nlines",1\nb,1,2\n', "line 4: 3 cells for 2 columns"),
        ("prompt,prompt\na,1\n", "column 'prompt' comes twice"),
        ('prompt,answer\n"a"b,1\n', "line 2: "),
        ('prompt,answer\n"open,1\n', "line 2: "),
        (b"prompt,answer\na,1\n\xe9,2\n", "line 3: not UTF-8"),
        (f"prompt\n{'x' * 200_000}\n", "line 2: field larger"),
        ("prompt,answer\n", "no rows"),
        ("", "no rows"),
    ],
)
def test_csv_that_cannot_be_read_is_named_by_line(tmp_path, content, words):
    refused(write(tmp_path / "rows.csv", content), words)


def test_an_empty_cell_is_nothing(tmp_path):
    made = read_rows(write(tmp_path / "rows.csv", "\ufeffprompt,answer\na,\n\nb,2\n"))
    assert [row.values for row in made.rows] == [{"prompt": "a", "answer": None}, {"prompt": "b", "answer": "2"}]


def test_sources_that_are_none(tmp_path, monkeypatch):
    (tmp_path / "broken_rows.py").write_text(
        "def raises(): raise OSError('no disk')\ndef number(): return 3\ndef odd(): return [{'prompt': 'a'}, 'b']\n"
    )
    monkeypatch.chdir(tmp_path)
    refused(tmp_path / "none.jsonl", "No such file")
    refused(tmp_path, "expected a .jsonl, .csv, .parquet file")
    refused("rows.txt", "expected a .jsonl, .csv, .parquet file, gym:NAME or package.module:function")
    refused(write(tmp_path / "empty.jsonl", "\n"), "no rows")
    refused([], "no rows")
    refused("broken_rows:raises", "it raised OSError: no disk")
    refused("broken_rows:number", "int is not a list of rows")
    refused("broken_rows:odd", "broken_rows:odd row 1: 'b' is no row")
    refused("broken_rows:rises", "did you mean broken_rows:raises")
