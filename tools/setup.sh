#!/usr/bin/env bash
# Creates .venv with everything of requirements.lock and this project in editable form. Does nothing where that is done.
# PYTHON names an interpreter; without it the first of python3.12, python3.11 and python3 that is 3.11 or 3.12.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
stamp=$venv/.octavo-setup

key() { cat requirements.lock pyproject.toml tools/setup.sh | sha256sum; }
say() { printf '%s\n' "$*" >&2; }

if [[ -f $stamp && -x $venv/bin/python && $(key) == "$(cat "$stamp")" ]]; then
  exit 0
fi

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.12 python3.11 python3}; do
    if supported "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  say "Python 3.11 or 3.12 is needed and was not found; name one: make PYTHON=/path/to/python"
  return 1
}

# uv from PATH, else one of its own beside the environment.
find_uv() {
  if uv --version >/dev/null 2>&1; then
    command -v uv
    return
  fi
  local home=$venv/uv
  if [[ ! -x $home/bin/uv ]]; then
    say "Fetching uv"
    "$1" -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$home" uv >&2
  fi
  printf '%s\n' "$home/bin/uv"
}

# Where there is no GPU and the index has the CPU build of torch, that one: it is a tenth of the size.
requirements() {
  local torch
  torch=$(grep -m 1 '^torch==' requirements.lock)
  if [[ ! -e /dev/nvidiactl ]] && uv_pip install --dry-run --no-deps "$torch+cpu" >/dev/null 2>&1; then
    say "Using $torch+cpu"
    sed -e "s/^$torch\$/$torch+cpu/" -e '/^nvidia-/d' -e '/^cuda-/d' requirements.lock
  else
    cat requirements.lock
  fi
}

python=$(find_python)
if ! { [[ -x $venv/bin/python ]] && supported "$venv/bin/python"; }; then
  say "Creating $venv with $("$python" --version)"
  uv=$(find_uv "$python")
  "$uv" venv --quiet --allow-existing --python "$python" "$venv"
else
  uv=$(find_uv "$python")
fi
uv_pip() { "$uv" pip "$1" --python "$venv/bin/python" "${@:2}"; }

say "Installing requirements.lock into $venv"
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
requirements >"$wanted"
uv_pip install --quiet --requirement "$wanted"
uv_pip install --quiet --no-deps --editable .
key >"$stamp"
