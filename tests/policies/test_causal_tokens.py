"""Prompts and responses as tokens: what begins one, what ends one, and what padding does to them, which is nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from runs.tiny_language_models import tiny_tokenizer
from tokenizers.processors import TemplateProcessing

from assay.errors import ConfigError, InputError
from assay.policies.causal.tokens import Codec

BOS, EOS = 0, 1


def adding(pattern: str) -> Any:
    """Return the tiny tokenizer, which writes special tokens around a text, such as ``"<s> $A </s>"``."""
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=pattern, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return tokenizer


def test_a_prompt_begins_with_one_beginning_of_sequence():
    tokenizer = adding("<s> $A")
    plain = tuple(tokenizer("1+2=", add_special_tokens=False).input_ids)
    assert tokenizer("<s>1+2=").input_ids[:2] == [BOS, BOS]  # what doubling looks like
    codec = Codec(tokenizer)
    assert codec.prompt("1+2=") == codec.prompt("<s>1+2=") == (BOS, *plain)
    assert Codec(tiny_tokenizer()).prompt("1+2=") == plain  # this one adds none


def test_a_template_that_writes_the_beginning_gets_no_second_one():
    tokenizer = adding("<s> $A")
    tokenizer.chat_template = "<s>" + tokenizer.chat_template + "{% if add_generation_prompt %}<assistant>{% endif %}"
    for codec, prompt in (
        (Codec(tokenizer, chat=True), "what is it?"),
        (Codec(tokenizer), ({"role": "user", "content": "what is it?"},)),
    ):
        ids = codec.prompt(prompt)
        assert ids.count(BOS) == 1 and ids[0] == BOS
        assert tokenizer.decode(list(ids)) == "<s><user>what is it?</s><assistant>"


def test_a_template_that_writes_none_gets_none():
    assert BOS not in Codec(adding("<s> $A"), chat=True).prompt("what is it?")


def test_an_end_that_the_tokenizer_adds_is_taken_off_and_a_written_one_stays():
    codec = Codec(adding("<s> $A </s>"))
    assert EOS not in codec.prompt("1+2=")
    assert codec.prompt("1+2=")[0] == BOS
    assert codec.prompt("1+2=</s>")[-1] == EOS and codec.prompt("1+2=</s>").count(EOS) == 1


def test_a_system_turn_comes_first_unless_there_is_one():
    tokenizer = tiny_tokenizer()
    codec = Codec(tokenizer, chat=True, system="be brief")
    assert tokenizer.decode(list(codec.prompt("1+2="))) == "<system>be brief</s><user>1+2=</s>"
    own = ({"role": "system", "content": "be long"}, {"role": "user", "content": "1+2="})
    assert tokenizer.decode(list(codec.prompt(own))) == "<system>be long</s><user>1+2=</s>"


def test_padding_is_never_used():
    """Neither its side, nor a pad that is the end of sequence, nor having none changes a token."""
    prompts, expected = ["1+2=", "7+6=13\n5+4="], None
    for side in ("left", "right"):
        for pad in ("<pad>", "</s>", None):
            tokenizer = tiny_tokenizer()
            tokenizer.padding_side, tokenizer.pad_token = side, pad
            codec = Codec(tokenizer)
            found = [codec.prompt(prompt) for prompt in prompts] + [codec.answer(prompt, "9") for prompt in prompts]
            assert expected is None or found == expected
            expected = found
    assert expected is not None and all(ids[-1] == EOS for ids in expected[2:])


def test_every_end_that_the_model_declares_ends_a_response():
    codec = Codec(tiny_tokenizer(), stop_tokens=(7, 9))
    assert codec.stop_tokens == {EOS, 7, 9}


def test_a_tokenizer_without_an_end_needs_something_that_ends_a_response():
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no end-of-sequence token; give task.stop"):
        Codec(tokenizer)
    assert not Codec(tokenizer, stop=["\n"]).stop_tokens
    declared = Codec(tokenizer, stop_tokens=(9, 7))
    assert declared.stop_tokens == {7, 9} and declared.answer("1+2=", "3")[-1] == 7


def test_a_stop_string_ends_where_it_is_complete_even_inside_a_token():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["3\n5"])
    inside = tokenizer.convert_tokens_to_ids("3\n5")
    codec = Codec(tokenizer, stop=["\n", "=="])
    first = tokenizer("1+2=", add_special_tokens=False).input_ids
    assert not codec.ended(first) and codec.ended([*first, inside])
    response = codec.response([*first, inside], truncated=False)
    assert response.text == "1+2=3" and response.tokens == (*first, inside) and not response.truncated
    equals = tokenizer("=", add_special_tokens=False).input_ids
    assert len(equals) == 1 and not codec.ended(equals) and codec.ended(equals * 2)


def test_the_first_of_several_stop_strings_cuts_the_text():
    codec = Codec(tiny_tokenizer(), stop=["b", "a"])
    tokens = codec.tokenizer("xaybz", add_special_tokens=False).input_ids
    assert codec.response(tokens, truncated=False).text == "x"


@pytest.mark.parametrize("stop", ["x", "é" * 12, "\U0001f600" * 12, "the end of this"])
def test_a_stop_string_is_seen_at_the_token_that_completes_it(stop):
    codec = Codec(tiny_tokenizer(), stop=[stop])
    tokens = codec.tokenizer("1+2=3 " * 9 + stop, add_special_tokens=False).input_ids
    assert [codec.ended(tokens[:n]) for n in range(1, len(tokens) + 1)] == [False] * (len(tokens) - 1) + [True]


def test_a_stop_string_that_no_text_shows_is_refused():
    with pytest.raises(ConfigError, match="</s> is a special token, which no text shows"):
        Codec(tiny_tokenizer(), stop=["</s>"])


def test_special_tokens_are_no_part_of_a_text():
    codec = Codec(tiny_tokenizer())
    said = codec.tokenizer("3", add_special_tokens=False).input_ids
    response = codec.response([*said, EOS], truncated=False)
    assert response.text == "3" and response.tokens == (*said, EOS)
    assert codec.response([2, *said], truncated=True).text == "3"


@pytest.mark.parametrize("text", ["3", " 3", "7+6=13", "", "a  b", "x , y", "é\U0001f600", "don 't"])
def test_text_comes_back_as_it_was(text):
    """In particular nothing is tidied up around punctuation, which would change what is graded."""
    codec = Codec(tiny_tokenizer())
    tokens = codec.tokenizer(text, add_special_tokens=False).input_ids
    assert codec.response(tokens, truncated=False).text == text


def test_an_answer_is_what_the_model_would_say():
    """Prompt and answer joined are the tokens of the running text, its end included, wherever merges allow."""
    for codec, end in ((Codec(tiny_tokenizer()), "</s>"), (Codec(tiny_tokenizer(), stop=["\n"]), "\n")):
        for prompt, answer in (("1+2=", "3"), ("7+6=", "13"), ("what is", " it?"), ("7+6=1", "3")):
            joined = [*codec.prompt(prompt), *codec.answer(prompt, answer)]
            assert codec.tokenizer.decode(joined) == prompt + answer + end
            ended = codec.answer(prompt, answer)
            assert codec.response(ended, truncated=False).text == answer
            assert codec.ended(ended) if end == "\n" else ended[-1] == EOS


def test_a_boundary_that_the_tokenizer_merges_keeps_the_tokens_of_the_prompt():
    codec = Codec(tiny_tokenizer())
    together = codec.tokenizer("what is it?", add_special_tokens=False).input_ids
    for cut in range(1, len("what is it?")):
        prompt, answer = "what is it?"[:cut], "what is it?"[cut:]
        said = codec.answer(prompt, answer)
        assert codec.tokenizer.decode([*codec.prompt(prompt), *said[:-1]]) == "what is it?"
        if together[: len(codec.prompt(prompt))] == list(codec.prompt(prompt)):
            assert [*codec.prompt(prompt), *said[:-1]] == together


@pytest.mark.parametrize("prompt", ["", ()])
@pytest.mark.parametrize("pattern", ["$A", "<s> $A", "<s> $A </s>"])
def test_an_empty_prompt_is_refused_whatever_the_tokenizer_would_write(prompt, pattern):
    for codec in (Codec(adding(pattern)), Codec(adding(pattern), chat=True, system="be brief")):
        with pytest.raises(InputError, match="has no tokens; every problem needs a prompt"):
            codec.prompt(prompt)


def test_a_chat_without_a_template_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    for given in ({"chat": True}, {"system": "be brief"}):
        with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
            Codec(copy.deepcopy(tokenizer), **given)
    with pytest.raises(InputError, match="a prompt is a chat, and the tokenizer has no chat template"):
        Codec(tokenizer).prompt(({"role": "user", "content": "1+2="},))
