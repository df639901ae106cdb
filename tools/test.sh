#!/usr/bin/env bash
# Run the tests in tiers, cheapest first, and print the seconds of each. Stop at the first tier that fails.
# Arguments are tiers: fast, kernels, operator, model, levels, ray. Without arguments, all of them run.
# Tiers kernels, operator and levels use one process per core, and fast one more. In model and ray, a test has the machine alone.
# The tier levels runs the kernels and "same answer every way" on each instruction set of the processor except the best
# one, which the other tiers use.
set -uo pipefail
cd "$(dirname "$0")/.."

# Without bytecode files, each process compiles the modules that it imports: seconds, and the tests start hundreds.
unset PYTHONDONTWRITEBYTECODE

declare -A selection=(
  [fast]="not operator and not model and not ray"
  [kernels]="not model and not ray"
  [operator]="operator and not model and not ray"
  [model]="model and not ray"
  [levels]="not ray"
  [ray]="ray"
)
# Folders are named or ignored here, so that pytest does not import them only to deselect their tests.
kernels=(tests/kernels tests/engine/runner)
operator=(tests/operator tests/helm tests/manifests tests/images)
others=("${kernels[@]}" "${operator[@]}")
levels=(tests/kernels tests/engine/runner tests/engine/test_same_answer_every_way.py)
declare -A folders=([fast]="${others[*]/#/--ignore=}" [kernels]="${kernels[*]}" [operator]="${operator[*]}"
  [levels]="${levels[*]}")
# Tests of the tier fast wait for timers a third of the time: one process more than cores uses that time.
declare -A workers=([fast]="$(($(nproc) + 1))" [kernels]="$(nproc)" [operator]="$(nproc)" [model]=0 [levels]="$(nproc)" [ray]=0)
tiers=("${@:-fast kernels operator model levels ray}")
read -ra tiers <<<"${tiers[*]}"
report=()

run() {
  # shellcheck disable=SC2086 # several words
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
  # Status 5 means that a tier has no tests, which is not a failure.
  if ((status != 0 && status != 5)); then
    printf '%s\n' "${report[@]}"
    exit "$status"
  fi
done
printf '%s\n' "${report[@]}"
