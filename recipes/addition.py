"""Write recipes/addition.jsonl: sums of two numbers from 1 to 20, as a base model can be asked for them.

Three worked examples come before each sum. ``pair`` is the same for 3+4 and 4+3, so that a split by it keeps both on
one side.
"""

import itertools
import json
from pathlib import Path

EXAMPLES = "1+2=3\n5+4=9\n7+6=13\n"

rows = [
    {"prompt": f"{EXAMPLES}{a}+{b}=", "answer": str(a + b), "pair": f"{min(a, b)}+{max(a, b)}"}
    for a, b in itertools.product(range(1, 21), repeat=2)
]
text = "".join(json.dumps(row) + "\n" for row in rows)
Path(__file__).with_suffix(".jsonl").write_text(text, encoding="utf-8")
