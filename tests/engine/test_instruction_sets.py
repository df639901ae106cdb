"""The embedded model on every instruction set of this processor: the same tokens and log probabilities, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

DIGESTS = {"float32": "ab9f17fa2fea8aa2", "bfloat16": "bd7dbc869ffddb6f"}
"""Recorded on one machine: the answer follows the model and the request, and no machine."""

SCRIPT = Path(__file__).with_name("greedy_answer.py")


def run(level: str, dtype: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OCTAVO_CPU_ISA": level}
    return subprocess.run(
        [sys.executable, SCRIPT, dtype], env=environment, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_equal_on_every_instruction_set(dtype):
    from octavo_kernels.cpu.instruction_set import host_instruction_sets

    answers = {}
    for level in host_instruction_sets():
        found = run(level, dtype)
        assert found.returncode == 0, found.stderr
        answers[str(level)] = json.loads(found.stdout)
    first = next(iter(answers.values()))
    assert answers == dict.fromkeys(answers, first)
    assert "Paris" in first["text"]
    assert first["digest"] == DIGESTS[dtype], first


def test_an_unknown_instruction_set_ends_the_start_with_the_known():
    found = run("sse9", "bfloat16")
    assert found.returncode != 0
    assert "OCTAVO_CPU_ISA: got 'sse9', allowed on this processor: " in found.stderr
