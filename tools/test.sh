#!/usr/bin/env bash
# Runs the tests in tiers, cheapest first, and says how long each took. Stops at the first tier that fails.
# The first three run on all cores, a process each; in the others each test is given the machine.
# Arguments are tiers (fast, kernels, operator, model, ray); without any, all of them.
set -uo pipefail
cd "$(dirname "$0")/.."

# Where Python may keep no bytecode, each process compiles what it imports: seconds, and the tests start hundreds.
unset PYTHONDONTWRITEBYTECODE

declare -A selection=(
  [fast]="not operator and not model and not ray"
  [kernels]="not model and not ray"
  [operator]="operator and not model and not ray"
  [model]="model and not ray"
  [ray]="ray"
)
# What is named or left out by folder need not be imported to be left out by its mark.
kernels=(tests/kernels tests/engine/runner)
operator=(tests/operator tests/helm tests/manifests tests/images)
others=("${kernels[@]}" "${operator[@]}")
declare -A folders=([fast]="${others[*]/#/--ignore=}" [kernels]="${kernels[*]}" [operator]="${operator[*]}")
declare -A workers=([fast]="$(nproc)" [kernels]="$(nproc)" [operator]="$(nproc)" [model]=0 [ray]=0)
tiers=("${@:-fast kernels operator model ray}")
read -ra tiers <<<"${tiers[*]}"
report=()

for tier in "${tiers[@]}"; do
  if [[ -z ${selection[$tier]:-} ]]; then
    echo "test.sh: no tier $tier; there are: fast, kernels, operator, model, ray" >&2
    exit 2
  fi
  echo "== tier $tier: ${selection[$tier]}"
  began=$SECONDS
  # shellcheck disable=SC2086 # words, not one
  .venv/bin/python -m pytest ${folders[$tier]:-} -q -m "${selection[$tier]}" -n "${workers[$tier]}" --dist=loadfile \
    --durations=5 --durations-min=2
  status=$?
  report+=("tier $tier: $((SECONDS - began)) s, exit status $status")
  # 5: a tier without a test is no failure.
  if ((status != 0 && status != 5)); then
    printf '%s\n' "${report[@]}"
    exit "$status"
  fi
done
printf '%s\n' "${report[@]}"
