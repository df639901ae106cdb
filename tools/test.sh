#!/usr/bin/env bash
# Runs the tests in tiers, cheapest first, and says how long each took. Stops at the first tier that fails.
# The first three run on all cores, a process each; in the others each test is given the machine.
# Arguments are tiers (fast, kernels, operator, model, levels, ray); without any, all of them. The tier "levels" runs
# the kernels and "same answer every way" on each instruction set of the processor but the best, which the others use.
set -uo pipefail
cd "$(dirname "$0")/.."

# Where Python may keep no bytecode, each process compiles what it imports: seconds, and the tests start hundreds.
unset PYTHONDONTWRITEBYTECODE

declare -A selection=(
  [fast]="not operator and not model and not ray"
  [kernels]="not model and not ray"
  [operator]="operator and not model and not ray"
  [model]="model and not ray"
  [levels]="not ray"
  [ray]="ray"
)
# What is named or left out by folder need not be imported to be left out by its mark.
kernels=(tests/kernels tests/engine/runner)
operator=(tests/operator tests/helm tests/manifests tests/images)
others=("${kernels[@]}" "${operator[@]}")
levels=(tests/kernels tests/engine/runner tests/engine/test_same_answer_every_way.py)
declare -A folders=([fast]="${others[*]/#/--ignore=}" [kernels]="${kernels[*]}" [operator]="${operator[*]}"
  [levels]="${levels[*]}")
declare -A workers=([fast]="$(nproc)" [kernels]="$(nproc)" [operator]="$(nproc)" [model]=0 [levels]="$(nproc)" [ray]=0)
tiers=("${@:-fast kernels operator model levels ray}")
read -ra tiers <<<"${tiers[*]}"
report=()

run() {
  # shellcheck disable=SC2086 # words, not one
  .venv/bin/python -m pytest ${folders[$1]:-} -q -m "${selection[$1]}" -n "${workers[$1]}" --dist=loadfile \
    --durations=5 --durations-min=2
}

run_levels() {
  local level others
  others=$(PYTHONPATH=kernels .venv/bin/python -c \
    "from octavo_kernels.cpu.instruction_set import host_instruction_sets as levels; print(*levels()[1:])") || return
  for level in $others; do
    echo "== OCTAVO_CPU_ISA=$level"
    OCTAVO_CPU_ISA=$level run levels || return
  done
}

for tier in "${tiers[@]}"; do
  if [[ -z ${selection[$tier]:-} ]]; then
    echo "test.sh: no tier $tier; there are: fast, kernels, operator, model, levels, ray" >&2
    exit 2
  fi
  echo "== tier $tier: ${selection[$tier]}"
  began=$SECONDS
  if [[ $tier == levels ]]; then
    run_levels
  else
    run "$tier"
  fi
  status=$?
  report+=("tier $tier: $((SECONDS - began)) s, exit status $status")
  # 5: a tier without a test is no failure.
  if ((status != 0 && status != 5)); then
    printf '%s\n' "${report[@]}"
    exit "$status"
  fi
done
printf '%s\n' "${report[@]}"
