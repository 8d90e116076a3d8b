"""Each promise that the pages print has a test, and each quoted promise is printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.promises.pages import PAGES, Proofs, all_proofs, printed, problems

GUARANTEES = "docs/guarantees.md"
HERE = "tests/promises/test_promises.py::test_every_promise_has_a_test"
PAGE = """# Guarantees

Not a promise.

## Sent

[Tests](../tests/promises/test_sent.py)

- A message **exists** once the [transaction](transactions.md) commits. It is
  never read before.

| failure | lost |
|---|---|
| a kill | none |

It is kept.

## Not promised

- Anything else.
"""
PROOFS = Proofs(
    "tests/promises/test_sent.py",
    tests=["It is never read before."],
    elsewhere={
        "a kill | none": [HERE],
        "A message exists...": [HERE],
    },
    explained=["It is kept."],
)


def found(page: str = PAGE, proofs: Proofs = PROOFS) -> list[str]:
    return problems({GUARANTEES: page}, [proofs])


def test_every_promise_has_a_test():
    assert printed(PAGES)
    assert problems(PAGES, all_proofs()) == []


def test_sentences_items_and_rows_are_promises_as_a_reader_sees_them():
    assert [promise.text for promise in printed({GUARANTEES: PAGE})] == [
        "A message exists once the transaction commits.",
        "It is never read before.",
        "a kill | none",
        "It is kept.",
    ]
    assert found() == []


@pytest.mark.parametrize(
    ("before", "line", "text"),
    [
        ("\n| failure", "- It is also fast.\n", "It is also fast."),
        ("\nIt is kept", "| a fire | none |\n", "a fire | none"),
        ("\n\n## Not promised", " Of course it is.", "Of course it is."),
    ],
)
def test_a_line_without_a_test_is_found(before, line, text):
    page = PAGE.replace(before, line + before)

    assert found(page) == [
        f"{GUARANTEES}, Sent: no test in tests/promises/test_sent.py for: {text}"
    ]


def test_a_real_page_with_a_line_more_is_found():
    changed = PAGES[GUARANTEES].replace("\n## Delivered", "- It is free.\n\n## Delivered", 1)
    more = problems({**PAGES, GUARANTEES: changed}, all_proofs())

    assert [problem.rpartition(": ")[2] for problem in more] == ["It is free."]


def test_the_section_what_is_promised_of_any_page_counts():
    page = "# Limits\n\nA text.\n\n## What is promised\n\nMuch.\n\n## How to\n\nSo.\n"

    assert problems({"docs/limits.md": page}, []) == [
        "docs/limits.md, What is promised: the section links no tests, for: Much."
    ]


def test_a_promise_that_was_changed_leads_to_its_test():
    assert found(PAGE.replace("never read before", "never read after")) == [
        f"{GUARANTEES}, Sent: no test in tests/promises/test_sent.py for: It is never read after.",
        "tests/promises/test_sent.py: 0 times on its page, not once: It is never read before.",
    ]


def test_an_ambiguous_quotation_is_found():
    [problem] = found(proofs=replace(PROOFS, explained=["It is kept.", "It is..."]))

    assert problem == "tests/promises/test_sent.py: 2 times on its page, not once: It is..."


def test_an_absolute_promise_needs_a_test_of_its_own():
    elsewhere = {**PROOFS.elsewhere, "It is never read before.": []}
    [problem] = found(proofs=replace(PROOFS, tests=[], elsewhere=elsewhere))

    assert problem.startswith(f"{GUARANTEES}, Sent: needs a test at full speed")


@pytest.mark.parametrize(
    "gone",
    ["tests/test_acks.py::test_gone", "tests/test_gone.py::test_every_promise_has_a_test"],
)
def test_a_test_that_is_gone_is_found(gone):
    [problem] = found(
        proofs=replace(PROOFS, elsewhere={**PROOFS.elsewhere, "a kill | none": [gone]})
    )

    assert problem == f"tests/promises/test_sent.py: there is no test {gone}"
