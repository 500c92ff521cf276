"""Files that are read piece by piece hold what they hold when they are read whole."""

from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from regard_lab.tasks import TextConfig, text_files
from regard_lab.tasks.corpus import open_corpus
from regard_lab.tasks.text_files import documents, lines

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LETTERS = st.text(st.sampled_from("ab|é中\n\ufeff"), max_size=40)


@QUICK
@example(text="abc\ufeff|\ufeffd", separator="|", read=3)  # a byte order mark only at the very beginning
@given(text=LETTERS.filter(bool), separator=st.sampled_from(["|", "||", "ab", "a|a", "\n\n"]), read=st.integers(1, 9))
def test_parts_are_those_of_the_whole_text(tmp_path, text, separator, read):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8", newline="")
    before, text_files._READ_BYTES = text_files._READ_BYTES, max(read, 3)  # a byte order mark takes three
    try:
        found = ["".join(pieces) for pieces in documents(path, separator)]
        assert found == [each for each in text.removeprefix("\ufeff").split(separator) if each]
    finally:
        text_files._READ_BYTES = before


@QUICK
@given(text=LETTERS, cuts=st.lists(st.integers(0, 100), max_size=4))
def test_spans_of_lines_make_up_the_file(tmp_path, text, cuts):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8", newline="")
    size = path.stat().st_size
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    found = [line for span in pairwise(edges) for line in lines(path, span)]
    assert found == list(lines(path))


@QUICK
@given(text=LETTERS.filter(bool), holdout=st.sampled_from([0.05, 0.1, 0.3, 0.47]), read=st.integers(3, 9))
def test_a_text_is_cut_in_three_where_it_is_when_read_whole(tmp_path, text, holdout, read):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8", newline="")
    before, text_files._READ_BYTES = text_files._READ_BYTES, read
    try:
        whole, cuts = text.removeprefix("\ufeff"), [0]
        for share in (1 - 2 * holdout, 1 - holdout):
            at = int(share * len(whole))
            line = whole.rfind("\n", at - int(holdout * len(whole) / 4), at)
            cuts.append(line + 1 if line >= 0 else at)
        found = [document.text for document in open_corpus(TextConfig(corpus=str(path), holdout=holdout)).parse()]
        assert found == [whole[begin:end] for begin, end in pairwise([*cuts, len(whole)])]
    finally:
        text_files._READ_BYTES = before
