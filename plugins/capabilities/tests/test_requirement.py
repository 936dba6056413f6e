"""The grammar of requirements, its errors, and the truth of each operator."""

import pickle

import pytest
from harvest_capabilities import Operator, Requirement, RequirementError, Term, parse
from harvest_capabilities.contradiction import contradiction
from harvest_capabilities.version import compare
from hypothesis import example, given, settings
from hypothesis import strategies as st

OPERATORS = "=, !=, >=, <=, >, <, in, not in, exists, not exists"


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("gpu = true", [("gpu", "=", ["true"])]),
        ("gpu=true", [("gpu", "=", ["true"])]),
        ("gpu == true", [("gpu", "=", ["true"])]),
        ("gpu==true", [("gpu", "=", ["true"])]),
        (" gpu\n=\ttrue ", [("gpu", "=", ["true"])]),
        ("gpu != true", [("gpu", "!=", ["true"])]),
        ("expression = a=b!<c>", [("expression", "=", ["a=b!<c>"])]),
        ("expression = '=a'", [("expression", "=", ["=a"])]),
        ("runtime in [cuda=12]", [("runtime", "in", ["cuda=12"])]),
        ("region in [us-east-1, us-west-2]", [("region", "in", ["us-east-1", "us-west-2"])]),
        ("region in[us-east-1,us-west-2]", [("region", "in", ["us-east-1", "us-west-2"])]),
        ("region not  in ['a, b', \"]\"]", [("region", "not in", ["a, b", "]"])]),
        ("note = 'a in [b]'", [("note", "=", ["a in [b]"])]),
        ("note = 'in'", [("note", "=", ["in"])]),
        ("note = in", [("note", "=", ["in"])]),
        ('note = "it\'s"', [("note", "=", ["it's"])]),
        ("note = ' '", [("note", "=", [" "])]),
        ("gpu exists", [("gpu", "exists", [])]),
        ("gpu not exists", [("gpu", "not exists", [])]),
        ("v >= 12.4", [("v", ">=", ["12.4"])]),
        ("v>=12.4", [("v", ">=", ["12.4"])]),
        ("v <= '12.4'", [("v", "<=", ["12.4"])]),
        ("v>0", [("v", ">", ["0"])]),
        ("v<2026-03-01", [("v", "<", ["2026-03-01"])]),
        ("a.b/c:d~é = 1", [("a.b/c:d~é", "=", ["1"])]),
        ("in in [a]", [("in", "in", ["a"])]),
        ("in = 1, not = 1, exists = 1", [("in", "=", ["1"]), ("not", "=", ["1"]), ("exists", "=", ["1"])]),
        ("inner in [a]", [("inner", "in", ["a"])]),
        ("gpu=1,gpu=1", [("gpu", "=", ["1"]), ("gpu", "=", ["1"])]),
        ("x exists,y not exists,z in [a]", [("x", "exists", []), ("y", "not exists", []), ("z", "in", ["a"])]),
    ],
)
def test_reads(text, terms):
    """Keys, values, quotes and operators, longest first (CAP1, CAP3, CAP6)."""
    assert parse(text) == Requirement(tuple(Term(key, Operator(word), tuple(values)) for key, word, values in terms))


@pytest.mark.parametrize(
    ("text", "column", "sentence"),
    [
        ("", 0, "there is no term; leave the option out to ask for nothing"),
        (" \n", 0, "there is no term; leave the option out to ask for nothing"),
        ("gpu=1,,x=2", 6, "empty term; write one on each side of a comma"),
        ("gpu=1, ", 7, "empty term; write one on each side of a comma"),
        (", gpu=1", 0, "empty term; write one on each side of a comma"),
        ("= true", 0, "empty key; a term starts with the key of a label, without quotes"),
        ("'gpu' = true", 0, "empty key; a term starts with the key of a label, without quotes"),
        ("[a] = true", 0, "empty key; a term starts with the key of a label, without quotes"),
        ("in [a]", 0, "empty key; the key of a label goes before 'in', 'not in', 'exists' and 'not exists'"),
        ("a=1, not in [a]", 5, "empty key; the key of a label goes before 'in', 'not in', 'exists' and 'not exists'"),
        ("exists", 0, "empty key; the key of a label goes before 'in', 'not in', 'exists' and 'not exists'"),
        ("not exists, a=1", 0, "empty key; the key of a label goes before 'in', 'not in', 'exists' and 'not exists'"),
        ("gpu", 3, "no operator after 'gpu'; write 'gpu exists' or 'gpu = value'"),
        ("gpu, x = 1", 3, "no operator after 'gpu'; write 'gpu exists' or 'gpu = value'"),
        ("gpu [a]", 4, "no operator after 'gpu'; write 'gpu exists' or 'gpu = value'"),
        ("region IN [a]", 7, "unknown operator 'IN'; did you mean 'in'?"),
        ("region NOT IN [a]", 7, "unknown operator 'NOT'; did you mean 'not in'?"),
        ("region not [a]", 7, "unknown operator 'not'; did you mean 'not in'?"),
        ("region notin [a]", 7, "unknown operator 'notin'; did you mean 'not in'?"),
        ("gpu exist", 4, "unknown operator 'exist'; did you mean 'exists'?"),
        ("gpu ~ 1", 4, f"unknown operator '~'; expected one of {OPERATORS}"),
        ("gpu => 1", 4, f"unknown operator '=>'; expected one of {OPERATORS}"),
        ("gpu===1", 3, f"unknown operator '==='; expected one of {OPERATORS}"),
        ("gpu!=!true", 3, f"unknown operator '!=!'; expected one of {OPERATORS}"),
        ("gpu ! true", 4, f"unknown operator '!'; expected one of {OPERATORS}"),
        ("gpu <> 1", 4, f"unknown operator '<>'; expected one of {OPERATORS}"),
        ("gpu =", 5, "empty value; write the text to compare the label with"),
        ("gpu = , x = 1", 6, "empty value; write the text to compare the label with"),
        ("v >=", 4, "empty value; write the text to compare the label with"),
        ("gpu = ''", 6, "empty value; 'exists' and 'not exists' ask whether there is a label"),
        ("gpu = =1", 6, "a value that begins with '=' must stand in quotes"),
        ("region in [a, !b]", 14, "a value that begins with '!' must stand in quotes"),
        ("region in [a,]", 13, "empty value; write the text to compare the label with"),
        ("region in [a,,b]", 13, "empty value; write the text to compare the label with"),
        ("region in [, a]", 11, "empty value; write the text to compare the label with"),
        ("region in []", 10, "empty set; write at least one value between the brackets"),
        ("region not in [ ]", 14, "empty set; write at least one value between the brackets"),
        ("region in", 9, "'in' takes a set in brackets, such as [a, b]"),
        ("region not in a", 14, "'not in' takes a set in brackets, such as [a, b]"),
        ("gpu = [a]", 6, "'=' takes one value; a set needs 'in' or 'not in'"),
        ("region in [a, b", 10, "unbalanced bracket; this [ is never closed"),
        ("region in [a,", 10, "unbalanced bracket; this [ is never closed"),
        ("region in [", 10, "unbalanced bracket; this [ is never closed"),
        ("gpu = a[", 7, "unbalanced bracket; this [ is never closed"),
        ("gpu = a]", 7, "unbalanced bracket; this ] closes nothing"),
        ("region in [a]]", 13, "unbalanced bracket; this ] closes nothing"),
        ("region in [[a]]", 11, "unbalanced bracket; a set holds values, not sets"),
        ("gpu = 'true", 6, "unbalanced quote; this ' is never closed"),
        ('region in ["a]', 11, 'unbalanced quote; this " is never closed'),
        ("note = it's", 9, "unbalanced quote; this ' is never closed"),
        ("gpu = a b", 8, "trailing text; a comma goes between terms and values, quotes around a value with spaces"),
        ("gpu = 'a'b", 9, "trailing text; a comma goes between terms and values, quotes around a value with spaces"),
        (
            "gpu = a in [b]",
            8,
            "trailing text; a comma goes between terms and values, quotes around a value with spaces",
        ),
        ("a in [b c]", 8, "trailing text; a comma goes between terms and values, quotes around a value with spaces"),
        ("gpu exists 1", 11, "trailing text; a comma goes between terms and values, quotes around a value with spaces"),
        ("v >= 1.2rc1", 5, "'1.2rc1' is no version; '>=' takes numbers joined by dots, such as 12.4"),
        ("v < '1 2'", 4, "'1 2' is no version; '<' takes numbers joined by dots, such as 12.4"),
        ("v > 1.2-3", 4, "'1.2-3' is no version; '>' takes numbers joined by dots, such as 12.4"),
        ("gpu = a\0", 7, "the character '\\x00' cannot be stored; leave it out"),
        ("gpu = '\ud800'", 7, "the character '\\ud800' cannot be stored; leave it out"),
    ],
)
def test_refuses(text, column, sentence):
    """Every fault of CAP3 has its sentence and its place; blank and empty terms are faults, not leave to run."""
    with pytest.raises(RequirementError) as caught:
        parse(text)
    assert (caught.value.sentence, caught.value.position) == (sentence, column)


def test_an_error_shows_the_text_with_a_caret():
    """The caret stands under the offending place even where the text has line breaks and tabs (CAP1)."""
    with pytest.raises(RequirementError) as caught:
        parse("gpu = true,\n\tregion in us-east-1")
    assert str(caught.value) == (
        "'in' takes a set in brackets, such as [a, b]\n"
        "    gpu = true,  region in us-east-1\n"
        "                           ^"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("labels", "reasons"),
    [
        ({"gpu": "true", "region": "us-west-2"}, ()),
        ({"gpu": "true", "region": "us-west-2", "other": "x"}, ()),
        ({"region": "us-east-1"}, ("unsatisfied_requirement:gpu=true",)),
        ({"gpu": "True", "region": "us-east-1"}, ("unsatisfied_requirement:gpu=true",)),
        ({"GPU": "true", "region": "us-east-1"}, ("unsatisfied_requirement:gpu=true",)),
        ({"gpu": "true"}, ("unsatisfied_requirement:region in [us-east-1, us-west-2]",)),
        ({}, ("unsatisfied_requirement:gpu=true", "unsatisfied_requirement:region in [us-east-1, us-west-2]")),
    ],
)
def test_gives_the_reasons(labels, reasons):
    """Each term that fails is one reason, in written order (CAP3, CAP5)."""
    assert parse("gpu = true, region in [us-east-1, us-west-2]").unsatisfied(labels) == reasons


def test_gives_each_reason_once():
    """A term written twice is one reason (CAP5)."""
    assert parse("gpu=1, gpu = 1, gpu == '1'").unsatisfied({}) == ("unsatisfied_requirement:gpu=1",)


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("12.4", "12.10", -1),
        ("12.10", "12.4", 1),
        ("9", "10", -1),
        ("1.0", "1.0.0", 0),
        ("1", "01.00", 0),
        ("0", "0.0", 0),
        ("1.0.1", "1", 1),
        ("2026-03-01", "2026-11-30", -1),
        ("9" * 5000, "1" + "0" * 5000, -1),
        ("2026-03-01", "2026.03.01", None),
        ("2026", "2026-03-01", None),
        *(
            (odd, "1", None)
            for odd in ["", " 1", "1\n", "v1", "-1", "+1", "1.", ".1", "1..2", "1.2-3", "1rc1", "1e3", "१"]
        ),
    ],
)
def test_compares_versions(left, right, order):
    """Number by number, never as text or as decimals; what is no version does not compare (CAP6)."""
    assert compare(left, right) == order
    assert compare(right, left) == (None if order is None else -order)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("gpu=1, gpu=2", "gpu=1, gpu=2"),
        ("a exists, x exists, x not exists", "x exists, x not exists"),
        ("x = 1, x not exists", "x=1, x not exists"),
        ("x != 1, x not exists", "x!=1, x not exists"),
        ("a in [x], a != x", "a in [x], a!=x"),
        ("a in [x, y], a in [z]", "a in [x, y], a in [z]"),
        ("a in [x, y], a not in [y, x, z]", "a in [x, y], a not in [y, x, z]"),
        ("a = x, a > 1", "a=x, a>1"),
        ("v > 2, v < 1", "v>2, v<1"),
        ("v > 1, v <= 1.0", "v>1, v<=1.0"),
        ("v >= 1, v < 1", "v>=1, v<1"),
        ("v >= 1, v >= 2026-03-01", "v>=1, v>=2026-03-01"),
        ("v < 0.0", "v<0.0"),
        ("v < 3, v > 1, v > 4", "v<3, v>1, v>4"),
    ],
)
def test_finds_what_can_never_hold(text, terms):
    """The terms of the one key that contradict each other (CAP3)."""
    assert ", ".join(map(str, contradiction(parse(text)))) == terms


@pytest.mark.parametrize(
    "text",
    [
        "gpu=1, gpu=1",
        "gpu=1, GPU=2",
        "x not exists, x not exists",
        "x not exists, y exists",
        "a in [x, y], a != x",
        "a != x, a exists, a not in [y]",
        "v >= 1, v <= 1, v != 1",
        "v > 1, v < 1.0.0.1",
        "v <= 0",
        "v = 1.0, v >= 1, v <= 1",
        "v > 1, v > 2, v >= 3",
    ],
)
def test_leaves_alone_what_some_worker_could_meet(text):
    """`1` and `1.0` are one version and two texts, and there is a version between any two (CAP3)."""
    assert contradiction(parse(text)) == ()


KEYS = st.sampled_from(["a", "b", "not", "in"])
TEXTS = st.text(st.sampled_from("ab01.-,[]' =!<>\té"), min_size=1, max_size=6) | st.sampled_from(["in", "not in", '"'])
VERSIONS = st.sampled_from(["0", "0.0", "1", "1.0", "1.0.1", "1.1", "2", "1-0", "1-1"])
TERMS = st.one_of(
    st.builds(Term, KEYS, st.sampled_from([Operator.EQUAL, Operator.NOT_EQUAL]), st.tuples(TEXTS | VERSIONS)),
    st.builds(Term, KEYS, st.sampled_from([Operator.EXISTS, Operator.NOT_EXISTS])),
    st.builds(
        Term,
        KEYS,
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.lists(TEXTS | VERSIONS, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        Term,
        KEYS,
        st.sampled_from([Operator.AT_LEAST, Operator.AT_MOST, Operator.ABOVE, Operator.BELOW]),
        st.tuples(VERSIONS),
    ),
)
REQUIREMENTS = st.lists(TERMS, min_size=1, max_size=5).map(lambda terms: Requirement(tuple(terms)))


def keyless(term: Term) -> bool:
    """`not in [a]` and `not exists` read as terms without a key, so a label named `not` has no such term."""
    return term.key == "not" and term.operator in (Operator.IN, Operator.EXISTS)


@settings(deadline=None)
@given(REQUIREMENTS)
def test_canonical_text_reads_as_the_same_requirement(requirement):
    """What a reason shows can be pasted back (CAP5)."""
    if not any(map(keyless, requirement.terms)):
        assert parse(str(requirement)) == requirement


@settings(deadline=None)
@given(st.text(st.sampled_from("ain otexs=!<>,[]'\"1.- \n\0"), max_size=20) | st.text(max_size=20))
@example("not not in [in]")
def test_any_text_is_read_whole_or_refused(text):
    """No text raises anything but a RequirementError, whose place lies in the text (CAP3)."""
    try:
        requirement = parse(text)
    except RequirementError as error:
        place = error.position
    else:
        place = 0
        assert parse(str(requirement)) == requirement
    assert 0 <= place <= len(text)


@settings(deadline=None)
@given(REQUIREMENTS)
def test_a_contradiction_is_exactly_what_no_labels_meet(requirement):
    """Against brute force over absent, every text in sight, and versions around and between every bound (CAP3)."""
    keys = {term.key for term in requirement.terms}
    values = {value for term in requirement.terms for value in term.values}
    spellings = {f"{value}{dots}" for value in values for dots in ("", ".0.0.0", ".0.0.0.1", "-0-0-0", "-0-0-0-1")}
    candidates = [None, *spellings, "0.0.0", "0-0-0", "9", "9-9", "none of these"]

    def can_hold(key: str) -> bool:
        terms = [term for term in requirement.terms if term.key == key]
        return any(all(term.holds({} if label is None else {key: label}) for term in terms) for label in candidates)

    assert bool(contradiction(requirement)) == (not all(map(can_hold, keys)))
