"""Regular expressions of filters: Go's syntax, linear time, checked against Python's where both mean the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster_core.config.patterns import PATTERN_CHARACTERS_MAX, InvalidPattern, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "matches", "fails"),
    [
        ("", ["", "x"], []),
        ("abc", ["abc", "xabcx"], ["ab c", ""]),
        ("^abc", ["abcx"], ["xabc"]),
        ("abc$", ["xabc"], ["abcx", "abc\n"]),
        ("^$", [""], ["x", "\n"]),
        (r"\Aabc\z", ["abc"], ["abcx", "xabc"]),
        ("^(alice|bob)-.*$", ["bob-7", "alice-"], ["xbob-7", "bob"]),
        ("a|", ["", "b"], []),
        ("^a*b+c?$", ["b", "aabbc"], ["a", "abcc"]),
        ("^a*?b+?c??$", ["b", "aabbc"], ["a", "abcc"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["a"]),
        ("^(ab){1,2}$", ["ab", "abab"], ["", "ababab"]),
        ("^a{0}$", [""], ["a"]),
        ("^x{y}$", ["x{y}"], ["xy"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^(a*)*$", ["", "aaa"], ["b"]),
        ("^(|a)+$", ["", "aa"], ["b"]),
        ("^.$", ["x", "é", "\U0001f600"], ["", "xy", "\n"]),
        ("(?s)^.$", ["\n", "x"], [""]),
        ("^[a-cx]$", ["b", "x"], ["d", "-"]),
        ("^[^a-c]$", ["d", "\n"], ["b", ""]),
        ("^[]a]$", ["]", "a"], ["b"]),
        ("^[a-]$", ["a", "-"], ["b"]),
        (r"^[\d_]$", ["7", "_"], ["a", "٣"]),
        (r"^\d\D\w\W\s\S$", ["1ab- z"], ["1111 1"]),
        ("^[[:alpha:][:digit:]]+$", ["ab12"], ["ab-"]),
        ("^[[:^digit:]]+$", ["ab-"], ["ab1"]),
        (r"\bops\b", ["ops", "my ops", "ops-team"], ["devops", "opsy"]),
        (r"^a\B", ["ab"], ["a", "a-"]),
        (r"^\Qa.b\E+$", ["a.b", "a.bbb"], ["axb"]),
        (r"^\x41\x{1F600}\.$", ["A\U0001f600."], ["AA."]),
        ("(?i)^Ann$", ["ANN", "ann"], ["ana"]),
        ("^(?i:a)b$", ["Ab"], ["AB"]),
        ("^(?i)a(?-i)b$", ["Ab"], ["AB"]),
        ("(?i)^[a-f]Ä$", ["Dä"], ["gä"]),
        ("^(?P<who>a)(?<what>b)(?:c)$", ["abc"], ["ab"]),
        ("^(?U)a+$", ["aa"], ["b"]),
        ("_sys$", ["me_sys"], ["sys_"]),
        (r"^\pL+$", ["Äb"], ["a1"]),
        ("(?m)^b$", ["a\nb"], ["ab"]),
        (r"^a\\C$", ["a\\C"], ["aC"]),
    ],
)
def test_the_meaning_of_an_expression(pattern: str, matches: list[str], fails: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [text for text in matches if not compiled.search(text)] == []
    assert [text for text in fails if compiled.search(text)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing \\)"),
        (")", "unexpected \\)"),
        ("[a", "missing \\]"),
        ("[]", "missing \\]"),
        ("[z-a]", "character class range: z-a"),
        (r"[a-\d]", r"escape sequence: \\d"),
        ("*a", "no argument for repetition operator"),
        ("a**", "bad repetition operator"),
        ("a+{2}", "bad repetition operator"),
        ("a{3,2}", "repetition size"),
        ("a{1001}", "repetition size"),
        ("a\\", "trailing"),
        (r"\1", "escape sequence"),
        (r"\C", "escape sequence"),
        (r"a\\\C", "escape sequence"),
        (r"\pX", "character class range"),
        (r"\x", "escape sequence"),
        (r"\x{110000}", "escape sequence"),
        (r"\x{1", "escape sequence"),
        ("[[:what:]]", "character class range"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)", "invalid perl operator"),
        ("(?i", "invalid perl operator"),
        ("\ud800", "not valid Unicode"),
        ("x" * (PATTERN_CHARACTERS_MAX + 1), "expected at most"),
        ("(a{1000}){1000}", "repetition size"),
        (r"(\pL{1,100}){10}", "too large"),
        ("((((a?){9}){9}){9}){9}", "repetition size"),
    ],
)
def test_invalid_expressions_have_their_reason(pattern: str, why: str) -> None:
    with pytest.raises(InvalidPattern, match=why):
        compile_pattern(pattern)


@pytest.mark.timeout(20)  # (Python's own expressions would need more years than there are)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*z$", "(a|aa)+$", "^(.*a){5}$", "(x+x+)+y", "(a|b)*a(a|b){20}$"])
def test_expressions_that_stall_others_end(pattern: str) -> None:
    subject = "ax" * 5_000 + "!"
    assert not compile_pattern(pattern).search(subject)


_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", "^", "$", r"\b", "-"])
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"])).map(lambda x: f"(?:{x[0]}){x[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=400)
@given(_PATTERNS, st.lists(st.text(alphabet="ab-1 ", max_size=8), min_size=1, max_size=8))
def test_the_answers_are_those_of_pythons_expressions(pattern: str, subjects: list[str]) -> None:
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    compiled = compile_pattern(pattern)
    for subject in subjects:
        assert compiled.search(subject) == (expected.search(subject) is not None), subject


@settings(max_examples=400)
@given(st.text(alphabet="ab()[]{}|*+?\\.^$-,:<>=!isQEdx01 \n", max_size=40))
def test_any_text_is_an_expression_or_an_error_of_its_kind(text: str) -> None:
    try:
        compiled = compile_pattern(text)
    except InvalidPattern as error:
        why = str(error)
    else:
        why = str(compiled.search("ab01"))
    assert len(why) < 200
