"""The lint of the prose: its rules, and the baseline that only shrinks."""

import json
import subprocess
from pathlib import Path

import pytest

import prose

LONG = "word " * 26


def rules(source: str) -> list[tuple[str, int]]:
    return [(finding.rule, finding.line) for finding in prose.check_python("a.py", source)]


def page(text: str) -> list[tuple[str, int]]:
    return [(finding.rule, finding.line) for finding in prose.check_text("docs/a.md", 1, text)]


@pytest.mark.parametrize("first", ["What", "Which", "Who", "How", "Whether", "Where", "Whose", "**What**"])
def test_a_docstring_that_begins_with_a_question_word_is_found(first: str) -> None:
    assert rules(f'"""{first} a pod needs."""') == [("first-word", 1)]
    assert rules(f'class A:\n    def f(self):\n        """{first} a pod needs."""') == [("first-word", 3)]


def test_when_may_introduce_a_condition_only() -> None:
    assert rules('"""When a pod restarts."""') == [("first-word", 1)]
    assert rules('"""When a pod restarts, send the event."""') == []


def test_a_string_below_a_constant_may_begin_with_any_word() -> None:
    assert rules('A = 1\n"""How many seconds a request waits."""') == []


def test_a_long_sentence_is_found_on_its_line() -> None:
    assert rules(f'"""Start.\n\nShort. {LONG}"""') == [("sentence", 3)]
    assert page(f"# Head\n\nShort one.\nSecond. {LONG}\n") == [("sentence", 4)]
    assert page(f"- item\n- {LONG}\n") == [("sentence", 2)]


@pytest.mark.parametrize(
    "text",
    [
        f"A word `{LONG}` and a word.",
        f"```sh\n{LONG}\n```",
        f"Run:\n\n    {LONG}\n\n    {LONG}",
        f"| a |\n|---|\n| {LONG} |",
        "- " + "word " * 20 + "\n- " + "word " * 20,
        "word " * 20 + ". " + "Word " * 20,
        f"See [this](https://example.com/{'word-' * 30}) and https://example.com/a.b.c.",
    ],
)
def test_code_tables_addresses_and_items_make_no_sentence_long(text: str) -> None:
    assert page(text) == []


@pytest.mark.parametrize(
    "source",
    [
        'raise ValueError("it waits lest it fails")',
        'log.info(f"{pod} was Told, then ended")',
        'A = ("a pod is set "\n"back")',
        '"""Requests, and those\nthat wait."""',
        'A = 1\n"""Seconds until it is begun again."""',
    ],
)
def test_a_banned_phrase_is_found_with_its_replacement(source: str) -> None:
    (finding,) = prose.check_python("a.py", source)
    assert finding.rule == "phrase"
    assert finding.advice in prose.PHRASES.values()


def test_names_and_code_are_no_phrases() -> None:
    assert rules('a["anew"] = 1') == []
    assert page("Set `those that` there.") == []
    assert page("| a table says why |") == [("phrase", 1)]


@pytest.mark.parametrize(
    "subject", ["tools: lint the prose", "router, api: reject long prompts", "e2e/node: add a pod"]
)
def test_a_commit_subject_with_area_and_verb_passes(subject: str) -> None:
    assert list(prose.check_subjects([f"abc {subject}"])) == []


@pytest.mark.parametrize(
    "subject", ["Add a pod", "tools: add a pod.", "tools: Add a pod", "tools:add", "a: " + "b" * 70]
)
def test_other_commit_subjects_are_found(subject: str) -> None:
    (finding,) = prose.check_subjects([f"abc {subject}"])
    assert (finding.path, finding.rule) == ("commit abc", "commit")


def write(root: Path, files: dict[str, str], baseline: dict[str, dict[str, int]]) -> None:
    for name, text in {**files, prose.BASELINE: json.dumps(baseline)}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def allowances(root: Path) -> object:
    return json.loads((root / prose.BASELINE).read_text())


def test_more_findings_than_allowed_fail_and_are_never_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"a.py": '"""What a pod needs, anew."""'}, {"a.py": {"first-word": 1}})
    assert prose.main([], tmp_path) == 1
    assert capsys.readouterr().out == "a.py:1: phrase: 'anew'. Write: again\n"
    assert prose.main(["--update"], tmp_path) == 1
    assert "would rise for a.py" in capsys.readouterr().out
    assert allowances(tmp_path) == {"a.py": {"first-word": 1}}


def test_fewer_findings_fail_until_the_baseline_is_lowered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = {"a.py": {"first-word": 2}, "b.py": {"phrase": 1}, "gone.py": {"phrase": 1}}
    write(tmp_path, {"a.py": '"""What a pod needs."""', "b.py": ""}, baseline)
    assert prose.main([], tmp_path) == 1
    assert capsys.readouterr().out.count("--update") == 3
    assert prose.main(["--update"], tmp_path) == 0
    assert allowances(tmp_path) == {"a.py": {"first-word": 1}}
    assert prose.main([], tmp_path) == 0


def test_a_moved_file_takes_its_allowance_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"new/a.py": '"""What a pod needs."""'}, {"old/a.py": {"first-word": 2}})
    assert prose.main([], tmp_path) == 1
    assert "old/a.py: fewer findings than the baseline, or moved" in capsys.readouterr().out
    assert prose.main(["--update"], tmp_path) == 0
    assert allowances(tmp_path) == {"new/a.py": {"first-word": 1}}
    assert prose.main([], tmp_path) == 0


@pytest.mark.parametrize("files", [["new/b.py"], ["new/a.py", "other/a.py"], ["new/a.py", "old/a.py"]])
def test_an_allowance_moves_once_and_to_the_same_name_only(tmp_path: Path, files: list[str]) -> None:
    write(tmp_path, dict.fromkeys(files, '"""What a pod needs."""'), {"old/a.py": {"first-word": 1}})
    assert prose.main(["--update"], tmp_path) == 1
    assert allowances(tmp_path) == {"old/a.py": {"first-word": 1}}


def test_a_moved_file_may_not_have_more_findings(tmp_path: Path) -> None:
    write(tmp_path, {"new/a.py": '"""What a pod needs, anew."""'}, {"old/a.py": {"first-word": 1}})
    assert prose.main(["--update"], tmp_path) == 1


def commit(root: Path, subject: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    command = ["git", *identity, "commit", "-q", "--no-verify", "--allow-empty", "-m", subject]
    subprocess.run(command, cwd=root, check=True)


def test_only_commits_after_the_one_that_added_the_lint_are_checked(tmp_path: Path) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    write(origin, {"a.py": ""}, {})
    subprocess.run(["git", "init", "-q"], cwd=origin, check=True)
    commit(origin, "An older subject")
    assert prose.commits(origin) == []
    write(origin, {"tools/prose.py": ""}, {})
    commit(origin, "The commit of the lint")
    assert prose.main([], origin) == 0
    commit(origin, "tools: add a rule")
    assert prose.main([], origin) == 0
    commit(origin, "Add another rule.")
    assert prose.main([], origin) == 1
    subprocess.run(["git", "clone", "-q", "--depth", "1", origin.as_uri(), str(clone)], check=True)
    assert prose.main([], clone) == 0


def test_without_git_history_no_commit_is_checked(tmp_path: Path) -> None:
    assert prose.commits(tmp_path) == []
