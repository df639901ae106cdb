"""Lint of the project's prose: docstrings, user-visible strings, documents and commit subjects.

    python tools/prose.py           # fail if a file differs from its allowance in tools/prose_baseline.json
    python tools/prose.py --update  # lower the allowances to the present counts
    python tools/prose.py --count   # print the findings of each rule

The allowances may only shrink: ``--update`` refuses to raise one and names the file. A new file has none.
Moved files need no editing by hand. ``--update`` transfers the allowance of a deleted file to a new file with the
same base name and at most the same counts. Each allowance moves at most once. A new base name starts at zero.
"""

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BASELINE = "tools/prose_baseline.json"
MAX_WORDS, MAX_SUBJECT = 25, 72
QUOTING = {"tools/prose.py", "tests/repo/test_prose.py"}  # Their strings, not docstrings, quote banned phrases.
PHRASES = {
    "(those|the one|ones) (that|which|who)|that which": "name the thing: the requests, the block, the replica",
    "(some|any|no)body( else)?": "name the actor: a user, another client, no replica",
    "lest": "to avoid",
    "anew": "again",
    "meanwhile": "during ...",
    "but for": "except",
    "so long( as)?": "while or if, or name the duration",
    "(is|are|was|were|be|been) told|(hear|hears|heard) (of|from)": "receive, or: is notified",
    "(tell|tells|told) (it|them|us|who|what|which|whether|how)": "send, log or report",
    "(says|said) (so|who|why|what|which|whether|how)": "reports, returns or logs",
    "(go|goes|going|went) on (by (itself|themselves)|[a-z]+ing)": "continue, or: keep ...ing",
    "(begin|begins|began|begun|made|taken) again|(try|tries|tried) on": "restart, retry, or: create again",
    "(set|sets|setting) back": "revert, or: restore",
    "(let|lets|letting) go": "release",
    "(take|takes|taken|took|taking) up": "read, apply or accept",
    "(stop|stops|stopped) to [a-z]+": "stop ...ing",
    "(stand|stands) (in|under|above|below)": "is in, or: follows",
}
"""Banned phrases, as patterns without regard to case, with the replacement to suggest."""
FIRST_WORDS = {"what", "which", "who", "whom", "whose", "how", "whether", "where"}
RULES = {
    "first-word": "begin with an imperative verb or a noun",
    "sentence": f"at most {MAX_WORDS} words: one fact per sentence",
    "commit": f"area: verb object, lower case, at most {MAX_SUBJECT} characters, no period",
}
_PHRASES = {re.compile(rf"\b(?:{key})\b".replace(" ", r"\s+")): advice for key, advice in PHRASES.items()}
_ANY_PHRASE = re.compile("|".join(pattern.pattern for pattern in _PHRASES))
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_URL = re.compile(r"https?://[^\s)>]*[^\s)>.,;:]")
_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")
_ALONE = re.compile(r"\s*(#|\||<!--|>>>|[=+-]{3,})")
_END = re.compile(r"[.!?][\"')*\]]*\s+(?=[\"'(*\[]*[A-Z0-9§])")
_WORD = re.compile(r"[^\W_][\w'’./-]*")
_SUBJECT = re.compile(r"[a-z0-9][a-z0-9_./-]*(, ?[a-z0-9_./-]+)*: [a-z].*[^.\s]")
Counts = dict[str, Counter[str]]  # File, then rule.


class Finding(NamedTuple):
    """One place that breaks one rule."""

    path: str
    line: int
    rule: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {' '.join(self.text.split())!r}. Write: {self.advice}"


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, list item, heading and table row with its line, counted from 0. Code blocks are omitted."""
    block: list[str] = []
    fence = code = after_blank = False
    for number, line in enumerate([*text.splitlines(), ""]):
        bare, fenced = line.strip(), line.lstrip().startswith("```")
        fence ^= fenced
        code = line.startswith("    ") and (code or after_blank)
        skip = not bare or fence or fenced or code
        alone, item = _ALONE.match(line), _ITEM.match(line)
        if block and (skip or alone or item):
            yield number - len(block), "\n".join(block)
            block = []
        if alone and not skip:
            yield number, line
        elif not skip:
            block.append(line[item.end() :] if item else line)
        after_blank = not bare


def words_only(text: str) -> str:
    """Replace code spans and URLs by ``§`` and links by their text. The number of lines stays the same."""
    text = _CODE.sub(lambda code: "§" + "\n" * code[0].count("\n"), text)
    return _URL.sub("§", _LINK.sub(r"\1", text))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence of a paragraph with its line, counted from 0."""
    start = 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        yield text.count("\n", 0, start), text[start:end].strip()
        start = end


def check_phrases(path: str, first: int, text: str) -> Iterator[Finding]:
    """Find banned phrases in plain text that begins on line ``first``."""
    text = text.lower()
    for found in _ANY_PHRASE.finditer(text):
        advice = next(advice for pattern, advice in _PHRASES.items() if pattern.match(text, found.start()))
        yield Finding(path, first + text.count("\n", 0, found.start()), "phrase", found[0], advice)


def check_text(path: str, first: int, text: str) -> Iterator[Finding]:
    """Find long sentences and banned phrases in a document or a docstring that begins on line ``first``."""
    for line, raw in paragraphs(text):
        paragraph = words_only(raw)
        yield from check_phrases(path, first + line, paragraph)
        for offset, sentence in () if _ALONE.match(raw) else sentences(paragraph):
            if (number := len(_WORD.findall(sentence))) > MAX_WORDS:
                start = f"{' '.join(sentence.split()[:6])} ... ({number} words)"
                yield Finding(path, first + line + offset, "sentence", start, RULES["sentence"])


def check_python(path: str, source: str) -> Iterator[Finding]:
    """Check docstrings, strings below constants, and the phrases of all other strings of more than one word."""
    titles, seen = set[int](), set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            titles.add(id(node.body[0]))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            seen.add(id(node.value))
            text = node.value.value
            line = node.lineno + text[: len(text) - len(text.lstrip())].count("\n")
            yield from check_text(path, line, inspect.cleandoc(text))
            if id(node) in titles:
                _, first = next(sentences(words_only(inspect.cleandoc(text))))
                word = "".join(re.findall(r"^\W*(\w+)", first)).lower()
                if word in FIRST_WORDS or (word == "when" and "," not in first):  # A comma ends a condition.
                    yield Finding(path, line, "first-word", " ".join(first.split()[:6]), RULES["first-word"])
        elif isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in seen and path not in QUOTING:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            seen.update(map(id, parts))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "§" for part in parts)
            if " " in text:
                yield from check_phrases(path, node.lineno, words_only(text))


def check_subjects(commits: Iterable[str]) -> Iterator[Finding]:
    """Find commit subjects, each after a hash and a space, that do not follow the form."""
    for commit, _, subject in (line.partition(" ") for line in commits):
        if len(subject) > MAX_SUBJECT or not _SUBJECT.fullmatch(subject):
            yield Finding(f"commit {commit}", 1, "commit", subject, RULES["commit"])


def git(root: Path, *args: str) -> str:
    """Return the output of a git command; empty if git or the repository is missing."""
    try:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def commits(root: Path) -> list[str]:
    """Return hash and subject of each descendant of the commit that added this file. Merges are omitted."""
    added = git(root, "log", "--diff-filter=A", "--format=%H", "--", "tools/prose.py").split()
    if not added or git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        return []
    return git(root, "log", "--no-merges", "--ancestry-path", "--format=%h %s", f"{added[-1]}..HEAD").splitlines()


def findings(root: Path) -> list[Finding]:
    """Check all files below ``root`` that git tracks or would track; without git, all outside hidden folders."""
    listed = git(root, "ls-files", "-co", "--exclude-standard").splitlines()
    listed = listed or [str(file.relative_to(root)) for file in root.rglob("*.*")]
    found: list[Finding] = []
    for path in sorted(set(listed)):
        document = re.fullmatch(r"(docs/[^/]+|README|CONTRIBUTING)\.md", path)
        module = re.fullmatch(r"(?!\.|.*/\.|.*_pb2).*\.py", path)
        if (document or module) and (root / path).is_file():
            text = (root / path).read_text(encoding="utf-8")
            found += check_python(path, text) if module else check_text(path, 1, text)
    return found


def count(found: Iterable[Finding]) -> Counts:
    """Count findings by file and rule."""
    counts: Counts = {}
    for finding in found:
        counts.setdefault(finding.path, Counter())[finding.rule] += 1
    return counts


def carry(counts: Counts, baseline: Counts, gone: set[str]) -> Counts:
    """Add the allowances of deleted files, each under the name of one new file. The worst new file chooses first."""
    allowed, rest = dict(baseline), sorted(gone, key=lambda path: (baseline[path].total(), path))
    for path in sorted(counts.keys() - baseline.keys(), key=lambda path: (-counts[path].total(), path)):
        same = (old for old in rest if Path(old).name == Path(path).name and counts[path] <= baseline[old])
        if origin := next(same, None):
            allowed[path] = baseline[origin]
            rest.remove(origin)
    return allowed


def dump(counts: Counts) -> str:
    """Format counts as JSON with one line per file, in order, so that merges rarely conflict."""
    lines = [f"  {json.dumps(path)}: {json.dumps(counts[path], sort_keys=True)}" for path in sorted(counts)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(argv: list[str], root: Path = ROOT) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description="Lint of the project's prose.")
    parser.add_argument("--update", action="store_true", help="lower the allowances to the present counts")
    parser.add_argument("--count", action="store_true", help="print the findings of each rule")
    options = parser.parse_args(argv)
    found, wrong = findings(root), list(check_subjects(commits(root)))
    if options.count:
        total = Counter(finding.rule for finding in [*found, *wrong])
        print(*(f"{rule} {total[rule]}" for rule in ("first-word", "sentence", "phrase", "commit")), sep="\n")
        return 0
    baseline = {path: Counter(rules) for path, rules in json.loads((root / BASELINE).read_text()).items()}
    counts = count(found)
    allowed = carry(counts, baseline, {path for path in baseline if not (root / path).exists()})
    raised = [path for path in counts if not counts[path] <= allowed.get(path, Counter())]
    if options.update and not raised:
        (root / BASELINE).write_text(dump(counts))
        return 0
    over = (f for f in found if counts[f.path][f.rule] > allowed.get(f.path, Counter())[f.rule])
    lines = [str(finding) for finding in [*over, *wrong]]
    if options.update:
        lines.append(f"Baseline not updated: it would rise for {', '.join(raised)}. Rewrite the text.")
    for path in baseline:
        if path not in raised and counts.get(path, Counter()) != baseline[path]:
            lines.append(f"{path}: fewer findings than the baseline, or moved: run python tools/prose.py --update")
    print("\n".join(lines) or "No new findings in the prose.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
