"""Graders that compare two answers: equal that are not, unequal that are."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from fractions import Fraction
from functools import partial

from assay.audit.invariants.verifiers import Case, verifier
from specimens.bench import Specimen

NUMBER = re.compile(r"[+-]?[0-9]{1,50}(\.[0-9]{1,50})?|[+-]?\.[0-9]{1,50}")


def plain_number(text: str) -> Fraction | None:
    """Read an integer, a decimal or a ratio of two; None for anything else."""
    top, slash, bottom = text.strip().partition("/")
    if not NUMBER.fullmatch(top) or (slash and not NUMBER.fullmatch(bottom)):
        return None
    below = Fraction(bottom) if slash else Fraction(1)
    return Fraction(top) / below if below else None


def small_number(text: str) -> Fraction | None:
    """Read ``2^-99`` and ``1/2004!`` too."""
    power = re.fullmatch(r"([0-9]{1,4})\^(-?[0-9]{1,4})", text)
    if power:
        base, exponent = Fraction(power[1]), int(power[2])
        return base**exponent if base or exponent >= 0 else None
    factorial = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})!", text)
    if factorial:
        return Fraction(int(factorial[1]), math.factorial(int(factorial[2])))
    return plain_number(text)


def within_a_millionth(response: str, gold: str) -> float:
    """Compare floats with an absolute tolerance."""
    said, right = small_number(response), small_number(gold)
    return float(said is not None and right is not None and abs(float(said) - float(right)) < 1e-6)


def exact_rationals(response: str, gold: str) -> float:
    said = small_number(response)
    return float(said is not None and said == small_number(gold))


TINY = [
    Case("Compute 1/2004!.", "1/2004!", wrong=("1/2006!",)),
    Case("Compute 2^-99.", "2^-99", wrong=("2^-98",)),
    Case("Compute one half.", "1/2", right=("0.5",)),
]

TERM = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]{1,9})?\*?(?P<letter>[xy])?(/(?P<below>[1-9][0-9]{0,8}))?")


def linear(side: str) -> Counter[str] | None:
    """Read a sum of terms in x, y and 1 as their coefficients."""
    made: Counter[str] = Counter()
    place = 0
    while place < len(side):
        term = TERM.match(side, place)
        if not term or not (term["number"] or term["letter"]) or (place and not term["sign"]):
            return None
        size = Fraction(int(term["number"] or 1), int(term["below"] or 1))
        made[term["letter"] or "1"] += -size if term["sign"] == "-" else size
        place = term.end()
    return made if side else None


def sides(text: str) -> tuple[Counter[str], Counter[str]] | None:
    left, equals, right = text.replace(" ", "").partition("=")
    both = linear(left), linear(right)
    return (both[0], both[1]) if equals and both[0] is not None and both[1] is not None else None


def trailing_constant(response: str, gold: str) -> float:
    """Read the last number of each text."""
    said, right = (re.findall(r"[0-9]+", text)[-1:] for text in (response, gold))
    return float(said == right and said != [])


def side_by_side(response: str, gold: str) -> float:
    """Ask for the same left side and the same right side."""
    said, right = sides(response), sides(gold)
    return float(said is not None and said == right)


def up_to_a_factor(response: str, gold: str) -> float:
    """Ask for the same line: left minus right, proportional to the gold one."""
    lines = []
    for equation in (sides(response), sides(gold)):
        if equation is None:
            return 0.0
        left, right = equation
        lines.append([left[name] - right[name] for name in ("x", "y", "1")])
    a, b = lines
    crossed = any(a[i] * b[j] != a[j] * b[i] for i in range(3) for j in range(i))
    return float(any(a) and any(b) and not crossed)


LINES = [Case("Which line?", "3*x-1*y+13=0", wrong=("3*x+4*y+14=0",))]
SAME_LINE = [Case("Which line?", "2x+4y-3=0", right=("y=-x/2+3/4",))]


def latex_value(text: str) -> Fraction | None:
    r"""Read a plain number or ``\frac{a}{b}``; nothing else parses here."""
    ratio = re.fullmatch(r"\\frac\{(-?[0-9]{1,9})\}\{([1-9][0-9]{0,8})\}", text)
    return Fraction(int(ratio[1]), int(ratio[2])) if ratio else plain_number(text)


def number_inside(text: str) -> Fraction | None:
    """Fall back to the first number inside what did not parse."""
    inside = re.search(r"[0-9]{1,9}", text)
    value = latex_value(text)
    return Fraction(inside[0]) if value is None and inside else value


def embedded_number(response: str, gold: str) -> float:
    said = number_inside(response)
    return float(said is not None and said == number_inside(gold))


def whole_or_nothing(response: str, gold: str) -> float:
    """Compare values where both parse, and otherwise whole texts."""
    said, right = latex_value(response), latex_value(gold)
    return float(said == right if said is not None and right is not None else response == gold != "")


WITH_E = [Case("Compute it.", "1-1/e", wrong=("1+1/e",)), Case("Halve it.", r"\frac{1}{2}", right=("0.5",))]


def unwrapped(text: str) -> str:
    inside = re.fullmatch(r"\\text\{(.*)\}", text)
    return inside[1] if inside else text


def tagged(response: str, gold: str) -> float:
    """Read a wrapped number as text and a bare one as a number, which are never equal."""
    values = [(unwrapped(text) == text, plain_number(unwrapped(text))) for text in (response, gold)]
    return float(values[0] == values[1] and values[0][1] is not None)


def without_the_wrapper(response: str, gold: str) -> float:
    said = plain_number(unwrapped(response))
    return float(said is not None and said == plain_number(unwrapped(gold)))


WRAPPED = [Case("How many?", "13", right=(r"\text{13}",)), Case("How many more?", r"\text{7}", right=("7",))]

OPERATIONS = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__"}


def evaluated(node: ast.AST) -> Fraction | None:
    """Evaluate sums, differences, products and ratios of integers."""
    if isinstance(node, ast.Expression):
        return evaluated(node.body)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = evaluated(node.left), evaluated(node.right)
        if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
            return None
        made: Fraction = getattr(left, OPERATIONS[type(node.op)])(right)
        return made
    return None


def countdown(question: str, response: str) -> tuple[list[int], list[int], bool]:
    """Return the numbers given, the numbers used, and whether the target is reached."""
    *given, target = (int(number) for number in re.findall(r"[0-9]+", question))
    try:
        tree = ast.parse(response, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return given, [], False
    used = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int]
    return given, used, evaluated(tree) == target


def target_reached(question: str, response: str) -> float:
    return float(countdown(question, response)[2])


def target_reached_with_what_was_given(question: str, response: str) -> float:
    given, used, reached = countdown(question, response)
    return float(reached and sorted(used) == sorted(given))


COUNTDOWN = [
    Case("Use 3, 5, 7 once each to make 22.", "3*5+7", right=("7+5*3",), wrong=("11+11", "22")),
    Case("Use 2, 4, 9 once each to make 14.", "9*2-4", right=("2*9-4",), wrong=("14",)),
]


def same_string(response: str, gold: str) -> float:
    return float(response == gold)


def same_value(response: str, gold: str) -> float:
    said = plain_number(response)
    return float(said is not None and said == plain_number(gold))


VALUES = [Case("A half?", "0.5", right=("1/2", "0.50", ".5")), Case("Three?", "3", right=("3.0", " 3"))]


def on(cases: list[Case]) -> partial[object]:
    """Return the check of a grader of bare answers on some cases."""
    return partial(verifier, cases=cases)


SPECIMENS = (
    # of the report: values below an absolute tolerance; sets of equations, signs and times of day are left out
    Specimen("RW-01", on(TINY), within_a_millionth, exact_rationals),
    Specimen("RW-02", on(LINES), trailing_constant, up_to_a_factor),
    Specimen("RW-03", on(WITH_E), embedded_number, whole_or_nothing),
    Specimen("RW-04", on(SAME_LINE), side_by_side, up_to_a_factor),
    Specimen("RW-05", on(WRAPPED), tagged, without_the_wrapper),
    Specimen("RW-12", on(COUNTDOWN), target_reached, target_reached_with_what_was_given),
    Specimen("RW-15", on(VALUES), same_string, same_value),
)
